package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIExportUsage is what the consumers of an APIExport have stored. The server returns it as the
// subresource usage of the APIExport, and never stores it.
//
// +kubebuilder:object:generate=false
type APIExportUsage struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// export is the name of the APIExport.
	Export string `json:"export"`

	// time is the end of the period that this report covers, usually less than a minute ago. A
	// later report adds only usage after this time.
	Time metav1.MicroTime `json:"time"`

	// consumers are the logical clusters that bind the APIExport, or did so in the last 90 days, by
	// name.
	Consumers []ConsumerUsage `json:"consumers"`
}

// ConsumerUsage is what one consumer of an APIExport has stored.
//
// +kubebuilder:object:generate=false
type ConsumerUsage struct {
	// cluster is the name of the logical cluster. It never changes.
	Cluster string `json:"cluster"`

	// path is the path of the workspace, or the last one it had.
	Path string `json:"path"`

	// bound is true if the consumer binds the APIExport now.
	Bound bool `json:"bound"`

	// resources are the resources of the APIExport that the consumer has or had.
	Resources []ResourceUsage `json:"resources"`
}

// ResourceUsage is what one consumer has stored of one resource of an APIExport.
//
// +kubebuilder:object:generate=false
type ResourceUsage struct {
	// group is the API group, empty for the core group.
	Group string `json:"group"`

	// resource is the plural name.
	Resource string `json:"resource"`

	// since is when the consumer stored the first object. It is absent if that has not happened, or
	// is not recorded yet.
	Since *metav1.MicroTime `json:"since,omitempty"`

	// until is when the consumer no longer had the resource. It is absent while the consumer has
	// it. The figures stay for 90 days after it.
	Until *metav1.MicroTime `json:"until,omitempty"`

	// objects is the present number of objects.
	Objects int64 `json:"objects"`

	// bytes is the size of the present objects as they are stored.
	Bytes int64 `json:"bytes"`

	// objectSeconds is the number of objects multiplied by the time that they existed, in seconds.
	// It never decreases.
	ObjectSeconds int64 `json:"objectSeconds"`

	// byteSeconds is the number of stored bytes multiplied by the time that they were stored, in
	// seconds. It never decreases.
	ByteSeconds int64 `json:"byteSeconds"`

	// requests are the requests of the consumer by verb since its logical cluster was created,
	// usually up to less than a minute ago. They end with the logical cluster. Requests of the
	// provider through its view do not count.
	Requests map[string]int64 `json:"requests,omitempty"`

	// versions are the versions in which the consumer has requested the resource, by name. A
	// version that no consumer has requested for long enough can be retired. Requests of the
	// provider through its view do not count.
	Versions []VersionUsage `json:"versions,omitempty"`
}

// VersionUsage is when a version of a resource was used.
//
// +kubebuilder:object:generate=false
type VersionUsage struct {
	// version is the name of the version.
	Version string `json:"version"`

	// lastRequest is the day of the last request, in UTC, as in "2026-11-30". A watch is a request
	// when it begins and when it ends.
	LastRequest string `json:"lastRequest"`
}
