package catalog

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// grace is the time that a watch continues after its resource was removed, so that it
// can deliver the last events.
const grace = time.Second

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
