// Package serve hides how custom resources are served: one handler, unmodified
// upstream's, for each distinct schema, however many clusters serve it, and
// discovery and OpenAPI for each distinct set of schemas.
package serve

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// A Hash identifies a content: SHA-256 over all of a definition that changes how
// its resources are served.
type Hash [sha256.Size]byte

// A Content is a definition of custom resources without whose it is. Equal
// definitions in any number of clusters are one Content. It is never changed.
type Content struct {
	Hash Hash
	// Definition is named as in its clusters, and Established. Its UID is made of
	// the hash.
	Definition *apiextensionsv1.CustomResourceDefinition
}

// NewContent returns the content of a definition whose names are accepted.
func NewContent(crd *apiextensionsv1.CustomResourceDefinition) (*Content, error) {
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	names := crd.Status.AcceptedNames
	if names.Plural == "" {
		names = crd.Spec.Names
	}
	stored := crd.Status.StoredVersions
	if len(stored) == 0 {
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				stored = append(stored, v.Name)
			}
		}
	}
	text, err := json.Marshal(struct {
		Name   string
		Spec   apiextensionsv1.CustomResourceDefinitionSpec
		Names  apiextensionsv1.CustomResourceDefinitionNames
		Stored []string
	}{crd.Name, crd.Spec, names, stored})
	if err != nil {
		return nil, err
	}
	c := &Content{Hash: sha256.Sum256(text)}
	// Established long ago: upstream's handler waits a while after a definition was
	// established, for other servers to learn of it.
	since := metav1.Unix(0, 0)
	c.Definition = &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: crd.Name, UID: types.UID(fmt.Sprintf("%x", c.Hash))},
		Spec:       crd.Spec,
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: names, StoredVersions: slices.Clone(stored),
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: since},
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: since},
			},
		},
	}
	return c, nil
}

// GroupResource returns what the content defines.
func (c *Content) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: c.Definition.Spec.Group, Resource: c.Definition.Status.AcceptedNames.Plural}
}

// A Served is a custom resource as one cluster has it.
type Served struct {
	Content *Content
	// Identity of the export that its objects are stored under, or empty.
	Identity string
}

// A Shape is the set of custom resources that a cluster serves. Clusters that
// serve the same share one. It is never changed.
type Shape struct {
	// Key is equal for equal shapes.
	Key    Hash
	served []Served
	by     map[schema.GroupResource]Served
}

// NewShape returns the shape of what is served, which must differ in group or
// resource.
func NewShape(served ...Served) *Shape {
	s := &Shape{served: slices.Clone(served), by: map[schema.GroupResource]Served{}}
	slices.SortFunc(s.served, func(a, b Served) int { return slices.Compare(a.Content.Hash[:], b.Content.Hash[:]) })
	sum := sha256.New()
	for _, r := range s.served {
		s.by[r.Content.GroupResource()] = r
		sum.Write(r.Content.Hash[:])
	}
	sum.Sum(s.Key[:0])
	return s
}

// All returns everything served, in a fixed order. It must not be changed.
func (s *Shape) All() []Served { return s.served }

// Find returns the custom resource of that group and plural name.
func (s *Shape) Find(gr schema.GroupResource) (Served, bool) {
	r, ok := s.by[gr]
	return r, ok
}
