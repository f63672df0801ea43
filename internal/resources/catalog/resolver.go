package catalog

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Source is a reason for which clusters serve custom resources, such as their
// CustomResourceDefinitions. Its methods may be called concurrently. It reports changes
// to the [Resolver], without holding a lock that its methods need.
type Source interface {
	// Find returns the resource gr of cluster c.
	Find(c cluster.Name, gr schema.GroupResource) (Found, bool)
	// All returns the resources of cluster c, in any order.
	All(c cluster.Name) []Served
	// Anywhere reports whether any cluster serves gr.
	Anywhere(gr schema.GroupResource) bool
	// Holder returns the object of cluster c because of which it serves gr.
	Holder(c cluster.Name, gr schema.GroupResource) Holder
}

// A Holder is an object of a cluster that has names of a resource. The server, which has names in all
// clusters, is the zero value.
type Holder struct{ Kind, Name string }

// String returns the holder as errors name it.
func (h Holder) String() string {
	if h == (Holder{}) {
		return "the server"
	}
	return h.Kind + " " + h.Name
}

// Held are names of a resource that are in use in a cluster, and who has them.
type Held struct {
	Names apiextensionsv1.CustomResourceDefinitionNames
	By    Holder
}

// Found is a custom resource of a cluster, and why the cluster serves it.
type Found struct {
	Served
	// Evidence is all that the resource depends on. A write of the resource fails if a
	// part of it has changed. It is empty for resources that the server defines.
	Evidence []Evidence
}

// Evidence is a key in etcd at a revision, 0 for a key that does not exist.
type Evidence struct {
	Key      keys.Key
	Revision int64
}

// A Resolver knows the custom resources that each cluster serves: those that the server
// defines, and those of all sources. Of several with the same group and resource, the
// server's take precedence, then those of the sources in their order. All methods are
// safe for concurrent use.
type Resolver struct {
	// Fresh waits until the sources are current, and reports whether they are. Optional.
	Fresh func(context.Context) bool

	given   func(cluster.Name) *Shape
	sources []Source
	shapes  *recent.Interned[Hash, Shape]

	mu       sync.RWMutex
	clusters map[cluster.Name]*Shape // of clusters that have more than the server defines
	watches  map[resourceID]map[*contentWatch]struct{}
}

// NewResolver returns a resolver without sources. given returns the resources that the
// server defines in a cluster, which never change.
func NewResolver(given func(cluster.Name) *Shape) *Resolver {
	return &Resolver{
		given: given, shapes: recent.NewInterned[Hash, Shape](),
		clusters: map[cluster.Name]*Shape{}, watches: map[resourceID]map[*contentWatch]struct{}{},
	}
}

// Add adds a source. Call it before the first request.
func (r *Resolver) Add(s Source) { r.sources = append(r.sources, s) }

// Find returns the custom resource gr of cluster c.
func (r *Resolver) Find(c cluster.Name, gr schema.GroupResource) (Found, bool) {
	if s, ok := r.given(c).Find(gr); ok {
		return Found{Served: s}, true
	}
	for _, s := range r.sources {
		if f, ok := s.Find(c, gr); ok {
			return f, true
		}
	}
	return Found{}, false
}

// Anywhere reports whether any cluster serves gr, besides resources that the server
// defines. It takes time proportional to the number of clusters with such resources.
func (r *Resolver) Anywhere(gr schema.GroupResource) bool {
	for _, s := range r.sources {
		if s.Anywhere(gr) {
			return true
		}
	}
	return false
}

// ShapeOf returns the shape of the cluster of a request. A cluster that seems to have nothing
// from a source may have been created just now: few have nothing.
func (r *Resolver) ShapeOf(ctx context.Context) *Shape {
	c, _ := cluster.From(ctx)
	s := r.Shape(c)
	if s == r.given(c) && c != "" && c != cluster.All && !c.System() && r.Fresh != nil && r.Fresh(ctx) {
		return r.Shape(c)
	}
	return s
}

// Shape returns the shape of a cluster. Clusters with equal resources share it.
func (r *Resolver) Shape(c cluster.Name) *Shape {
	r.mu.RLock()
	shape := r.clusters[c]
	r.mu.RUnlock()
	switch {
	case shape != nil:
		return shape
	case len(r.further(c)) == 0: // most clusters, without the lock
		return r.given(c)
	}
	r.mu.Lock() // also while the sources are read: a change after that must remove the result
	defer r.mu.Unlock()
	if r.clusters[c] == nil {
		further := r.further(c)
		if len(further) == 0 {
			return r.given(c)
		}
		r.clusters[c] = r.shared(NewShape(slices.Concat(r.given(c).All(), further)...))
	}
	return r.clusters[c]
}

// further returns the resources of the sources in a cluster.
func (r *Resolver) further(c cluster.Name) []Served {
	var all []Served
	for _, s := range r.sources {
		all = append(all, s.All(c)...)
	}
	return all
}

// shared returns the shape that all clusters with the resources of fresh share.
func (r *Resolver) shared(fresh *Shape) *Shape {
	sum := sha256.New()
	sum.Write(fresh.Key[:])
	for _, s := range fresh.All() { // shapes with equal keys may differ in identities
		sum.Write([]byte(s.Identity + "\n"))
	}
	var key Hash
	sum.Sum(key[:0])
	shape, _ := r.shapes.Get(key, func() (*Shape, error) { return fresh, nil })
	return shape
}

// Names returns the names of all resources in a group of a cluster.
func (r *Resolver) Names(c cluster.Name, group string) (all []Held) {
	add := func(in []Served, by func(cluster.Name, schema.GroupResource) Holder) {
		for _, s := range in {
			if s.Content.Definition.Spec.Group == group {
				all = append(all, Held{s.Content.Definition.Status.AcceptedNames, by(c, s.Content.GroupResource())})
			}
		}
	}
	add(r.given(c).All(), func(cluster.Name, schema.GroupResource) Holder { return Holder{} })
	for _, s := range r.sources {
		add(s.All(c), s.Holder)
	}
	return all
}

// An identitySource is a [Source] whose resources have the identities of exports.
type identitySource interface {
	// FindIdentity returns the resource gr of an identity as any cluster serves it.
	FindIdentity(gr schema.GroupResource, identity string) (Served, bool)
}

// Identified returns the resource gr of an identity, as a request to cluster c or to all
// clusters gets it.
func (r *Resolver) Identified(c cluster.Name, gr schema.GroupResource, identity string) (Found, bool) {
	f, ok := r.Find(c, gr)
	if ok && f.Identity == identity && identity != "" {
		return f, true
	}
	if c != cluster.All {
		return Found{}, false
	}
	for _, s := range r.sources {
		if of, is := s.(identitySource); is {
			if served, ok := of.FindIdentity(gr, identity); ok {
				return Found{Served: served}, true
			}
		}
	}
	return Found{}, false
}
