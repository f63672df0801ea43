package catalog

import (
	"crypto/sha256"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Served is a custom resource of one cluster.
type Served struct {
	Content *Content
	// Identity is the identity of the export that its objects are stored under, empty
	// for a definition of the cluster itself.
	Identity string
}

// A Shape is the set of custom resources that a cluster serves. Clusters with equal
// sets share one. It is immutable.
type Shape struct {
	// Key is a hash of the contents. Shapes with equal keys have the same discovery
	// and OpenAPI.
	Key    Hash
	served []Served
	by     map[schema.GroupResource]Served
}

// NewShape returns the shape of the resources in served. The first of several with the
// same group and resource takes precedence.
func NewShape(served ...Served) *Shape {
	s := &Shape{by: map[schema.GroupResource]Served{}}
	for _, r := range served {
		gr := r.Content.GroupResource()
		if _, taken := s.by[gr]; !taken {
			s.by[gr] = r
			s.served = append(s.served, r)
		}
	}
	slices.SortFunc(s.served, func(a, b Served) int { return slices.Compare(a.Content.Hash[:], b.Content.Hash[:]) })
	sum := sha256.New()
	for _, r := range s.served {
		sum.Write(r.Content.Hash[:])
	}
	sum.Sum(s.Key[:0])
	return s
}

// All returns all resources in a fixed order. The caller must not change the slice.
func (s *Shape) All() []Served { return s.served }

// Find returns the custom resource of that group and plural name.
func (s *Shape) Find(gr schema.GroupResource) (Served, bool) {
	r, ok := s.by[gr]
	return r, ok
}
