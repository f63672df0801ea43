package serve

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
)

// grace is the time that a watch continues after its resource was removed, so that it
// can deliver the last events.
const grace = time.Second

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
	shapes  *interned[Hash, Shape]

	mu       sync.RWMutex
	clusters map[cluster.Name]*Shape // of clusters that have more than the server defines
	watches  map[resourceID]map[*contentWatch]struct{}
}

// A resourceID identifies a custom resource of a cluster.
type resourceID struct {
	cluster  cluster.Name
	resource schema.GroupResource
}

// A contentWatch is a watch of a custom resource. It ends when the resource changes; the
// client then watches again and gets the new content. Watches in other clusters continue,
// though they share the handler.
type contentWatch struct {
	served Served
	end    context.CancelFunc
}

// NewResolver returns a resolver without sources. given returns the resources that the
// server defines in a cluster, which never change.
func NewResolver(given func(cluster.Name) *Shape) *Resolver {
	return &Resolver{
		given: given, shapes: newInterned[Hash, Shape](),
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
	shape, _ := r.shapes.get(key, func() (*Shape, error) { return fresh, nil })
	return shape
}

// names adds the names of all resources in a group of a cluster to t.
func (r *Resolver) names(c cluster.Name, group string, t taken) {
	for _, all := range [][]Served{r.given(c).All(), r.further(c)} {
		for _, s := range all {
			if s.Content.Definition.Spec.Group == group {
				t.add(s.Content.Definition.Status.AcceptedNames)
			}
		}
	}
}

// Changed reports that a source has another resource gr in cluster c, or has it no more.
// It ends the watches of the old resource.
func (r *Resolver) Changed(c cluster.Name, gr schema.GroupResource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.clusters, c)
	r.check(resourceID{c, gr})
}

// Rebuilt reports that any resource of a source may have changed.
func (r *Resolver) Rebuilt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.clusters)
	for id := range r.watches {
		r.check(id)
	}
}

// check ends the watches whose resource has changed. The caller holds mu.
func (r *Resolver) check(id resourceID) {
	if len(r.watches[id]) == 0 {
		return
	}
	now, ok := r.Find(id.cluster, id.resource)
	for w := range r.watches[id] {
		switch {
		case !ok:
			time.AfterFunc(grace, w.end)
		case !now.watchedAs(w.served):
			w.end()
		}
	}
}

// watchedAs reports whether a watch of s is a watch of other, too.
func (s Served) watchedAs(other Served) bool {
	return s.Content.WatchHash == other.Content.WatchHash && s.Identity == other.Identity
}

// WatchContext returns a context for a watch of a resource in cluster c. The context ends
// when the resource changes. The caller must call the returned function when the watch has
// ended.
func (r *Resolver) WatchContext(ctx context.Context, c cluster.Name, f Found) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if len(f.Evidence) == 0 {
		return ctx, cancel // it never changes
	}
	id, w := resourceID{c, f.Content.GroupResource()}, &contentWatch{f.Served, cancel}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watches[id] == nil {
		r.watches[id] = map[*contentWatch]struct{}{}
	}
	r.watches[id][w] = struct{}{}
	if now, ok := r.Find(c, id.resource); !ok || !now.watchedAs(f.Served) {
		cancel() // it has changed since the caller read it
	}
	return ctx, func() {
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		if delete(r.watches[id], w); len(r.watches[id]) == 0 {
			delete(r.watches, id)
		}
	}
}
