package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIExportCheck says what other schemas of an APIExport would change for the stored objects of
// all consumers. Clients send it to a virtual workspace, which fills in the status. The server
// never stores it.
//
// +kubebuilder:object:generate=false
type APIExportCheck struct {
	metav1.TypeMeta `json:",inline"`

	// spec says what is checked.
	Spec APIExportCheckSpec `json:"spec"`

	// status is the result.
	Status APIExportCheckStatus `json:"status,omitzero"`
}

// APIExportCheckSpec says what is checked.
//
// +kubebuilder:object:generate=false
type APIExportCheckSpec struct {
	// schemas are the names of APIResourceSchemas in the workspace of the APIExport.
	// Each is checked as the next schema of its resource.
	// If there are neither schemas nor candidates, the result only has the versions in use.
	Schemas []string `json:"schemas,omitempty"`

	// candidates are APIResourceSchemas that need not exist. They are used like schemas.
	Candidates []APIResourceSchema `json:"candidates,omitempty"`

	// conversions are the APIConversions of the candidates.
	Conversions []APIConversion `json:"conversions,omitempty"`

	// limit is the maximum of objects that one request checks.
	// Defaults to 1000, which is also the maximum.
	Limit int64 `json:"limit,omitempty"`

	// continue is status.continue of the previous request, whose spec is otherwise equal.
	Continue string `json:"continue,omitempty"`
}

// APIExportCheckStatus is the result of one request. Counts are those of the objects that the
// request has checked, unless they say otherwise.
//
// +kubebuilder:object:generate=false
type APIExportCheckStatus struct {
	// consumers is the number of all logical clusters that bind the APIExport.
	Consumers int64 `json:"consumers"`

	// objects is the number of all objects to check, in all requests together.
	Objects int64 `json:"objects"`

	// checked is the number of objects that were checked.
	Checked int64 `json:"checked"`

	// broken is the number of objects that at least one schema would break.
	Broken int64 `json:"broken"`

	// unreadable is the number of objects that cannot be read with the schemas in use either. They were not checked.
	Unreadable int64 `json:"unreadable,omitempty"`

	// problems are changes that break all objects of a resource, whatever is in them.
	Problems []string `json:"problems,omitempty"`

	// notes say what cannot be checked.
	Notes []string `json:"notes,omitempty"`

	// causes counts the broken objects by field and reason. There are at most 100.
	Causes []BrokenCause `json:"causes,omitempty"`

	// brokenConsumers counts the broken objects by logical cluster.
	BrokenConsumers []BrokenConsumer `json:"brokenConsumers,omitempty"`

	// brokenObjects are the first 100 broken objects.
	BrokenObjects []BrokenObject `json:"brokenObjects,omitempty"`

	// versions are the versions in which objects are stored, or were written.
	Versions []VersionUse `json:"versions,omitempty"`

	// continue continues the check in another request. It is empty at the end.
	Continue string `json:"continue,omitempty"`
}

// BreakReason is the way in which a schema breaks an object.
type BreakReason string

const (
	// Unreadable objects cannot be read in a version: requests for them, and for lists with them, fail.
	Unreadable BreakReason = "Unreadable"
	// Invalid objects violate the schema. Writes that change the invalid part fail, and so do others
	// unless Kubernetes tolerates the part because it was not changed.
	Invalid BreakReason = "Invalid"
	// FieldLost objects have a field that the schema does not have. The field disappears for readers, and the next write deletes it.
	FieldLost BreakReason = "FieldLost"
)

// ObjectBreak is one way in which a schema breaks an object.
//
// +kubebuilder:object:generate=false
type ObjectBreak struct {
	// reason is the way in which the object breaks.
	Reason BreakReason `json:"reason"`

	// version is the version in which the object breaks, the first if there are several.
	Version string `json:"version"`

	// field is the path of the field, such as "spec.size". Empty for the whole object.
	Field string `json:"field,omitempty"`

	// message says what is wrong.
	Message string `json:"message"`
}

// BrokenObject is an object that a schema would break.
//
// +kubebuilder:object:generate=false
type BrokenObject struct {
	// cluster is the logical cluster of the object.
	Cluster string `json:"cluster"`

	// path is the path of the workspace, or the name of a logical cluster without one.
	Path string `json:"path,omitempty"`

	// group is the API group of the resource.
	Group string `json:"group"`

	// resource is the plural name of the resource.
	Resource string `json:"resource"`

	// namespace is the namespace of the object. Empty for cluster-scoped objects.
	Namespace string `json:"namespace,omitempty"`

	// name is the name of the object.
	Name string `json:"name"`

	// breaks are the ways in which the object breaks, at most eight.
	Breaks []ObjectBreak `json:"breaks"`
}

// BrokenCause counts the objects that break at one field for one reason.
//
// +kubebuilder:object:generate=false
type BrokenCause struct {
	// group is the API group of the resource.
	Group string `json:"group"`

	// resource is the plural name of the resource.
	Resource string `json:"resource"`

	// reason is the way in which the objects break.
	Reason BreakReason `json:"reason"`

	// field is the path of the field, with "[*]" for all items of a list and all keys of a map.
	// It is "*" for further causes, which are counted together.
	Field string `json:"field,omitempty"`

	// message is the message of the first object.
	Message string `json:"message"`

	// objects is the number of objects.
	Objects int64 `json:"objects"`
}

// BrokenConsumer counts the broken objects of one logical cluster.
//
// +kubebuilder:object:generate=false
type BrokenConsumer struct {
	// cluster is the logical cluster.
	Cluster string `json:"cluster"`

	// path is the path of the workspace, or the name of a logical cluster without one.
	Path string `json:"path,omitempty"`

	// broken is the number of broken objects.
	Broken int64 `json:"broken"`
}

// VersionEnd says what becomes of a version with the schemas that are checked.
type VersionEnd string

const (
	// VersionServed stays served.
	VersionServed VersionEnd = "Served"
	// VersionNotServed is not served any more. Stored objects can be read in other versions.
	VersionNotServed VersionEnd = "NotServed"
	// VersionRemoved is removed. Objects that are stored in it cannot be read any more.
	VersionRemoved VersionEnd = "Removed"
)

// VersionUse says how many objects of a resource use a version.
//
// +kubebuilder:object:generate=false
type VersionUse struct {
	// group is the API group of the resource.
	Group string `json:"group"`

	// resource is the plural name of the resource.
	Resource string `json:"resource"`

	// version is the version, such as "v1".
	Version string `json:"version"`

	// end says what becomes of the version with the schemas that are checked.
	End VersionEnd `json:"end"`

	// stored is the number of objects that are stored in the version.
	Stored int64 `json:"stored"`

	// managed is the number of objects with fields that a client set in the version.
	Managed int64 `json:"managed"`

	// consumers are the logical clusters of these objects.
	Consumers []VersionConsumer `json:"consumers,omitempty"`
}

// VersionConsumer is a logical cluster whose objects use a version.
//
// +kubebuilder:object:generate=false
type VersionConsumer struct {
	// cluster is the logical cluster.
	Cluster string `json:"cluster"`

	// path is the path of the workspace, or the name of a logical cluster without one.
	Path string `json:"path,omitempty"`

	// stored is the number of objects that are stored in the version.
	Stored int64 `json:"stored"`

	// managed is the number of objects with fields that a client set in the version.
	Managed int64 `json:"managed"`
}

// Add adds the next part of a check, with at most a number of broken objects in all.
func (s *APIExportCheckStatus) Add(part *APIExportCheckStatus, objects int) {
	s.Consumers, s.Objects, s.Problems, s.Notes = part.Consumers, part.Objects, part.Problems, part.Notes
	s.Checked, s.Broken, s.Unreadable = s.Checked+part.Checked, s.Broken+part.Broken, s.Unreadable+part.Unreadable
	s.BrokenObjects = append(s.BrokenObjects, part.BrokenObjects[:min(len(part.BrokenObjects), objects-len(s.BrokenObjects))]...)
	for _, c := range part.Causes {
		i := slices.IndexFunc(s.Causes, func(o BrokenCause) bool {
			o.Objects = c.Objects
			return o == c
		})
		if i >= 0 {
			s.Causes[i].Objects += c.Objects
		} else {
			s.Causes = append(s.Causes, c)
		}
	}
	for _, c := range part.BrokenConsumers { // in order, so that only the last one may be there
		if n := len(s.BrokenConsumers); n > 0 && s.BrokenConsumers[n-1].Cluster == c.Cluster {
			s.BrokenConsumers[n-1].Broken += c.Broken
		} else {
			s.BrokenConsumers = append(s.BrokenConsumers, c)
		}
	}
	for _, v := range part.Versions {
		s.addVersion(v)
	}
}

func (s *APIExportCheckStatus) addVersion(v VersionUse) {
	i := slices.IndexFunc(s.Versions, func(o VersionUse) bool {
		return o.Group == v.Group && o.Resource == v.Resource && o.Version == v.Version
	})
	if i < 0 {
		s.Versions = append(s.Versions, v)
		return
	}
	to := &s.Versions[i]
	to.Stored, to.Managed = to.Stored+v.Stored, to.Managed+v.Managed
	for _, c := range v.Consumers {
		if n := len(to.Consumers); n > 0 && to.Consumers[n-1].Cluster == c.Cluster {
			to.Consumers[n-1].Stored += c.Stored
			to.Consumers[n-1].Managed += c.Managed
		} else {
			to.Consumers = append(to.Consumers, c)
		}
	}
}
