package virtual

import (
	"context"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
)

// readers are the readers of virtual resources. It is a follower of the change feed, behind the
// tables of exports, ClusterCachedResources and their slices.
type readers struct {
	storage *Storage
	// members has, for each ClusterCachedResource by its name, the cluster with the objects.
	members *membership.Groups[exports.Name]

	// These are used by the feed alone.
	building bool
	last     int64                                                     // revision of the last change
	virtual  map[exports.Name]map[schema.GroupResource]catalog.Storage // virtual resources of exports

	mu    sync.Mutex
	watch map[keys.Key]map[*reader]struct{} // by the objects that they depend on
}

// A reader is a watch of a virtual resource.
type reader struct {
	current func() bool // whether it reads the right objects
	end     context.CancelFunc
}

func newReaders(x *Storage) *readers {
	return &readers{
		storage: x, members: membership.NewGroups[exports.Name](x.store.Feed().Revision), virtual: map[exports.Name]map[schema.GroupResource]catalog.Storage{},
		watch: map[keys.Key]map[*reader]struct{}{},
	}
}

// Reset implements [feed.Follower].
func (r *readers) Reset() { r.building = true }

// Done implements [feed.Follower].
func (r *readers) Done() {
	r.building = false
	all := map[cluster.Name][]membership.In[exports.Name]{}
	for _, k := range r.storage.Cached.Keys() {
		if all[k.Cluster] == nil {
			all[k.Cluster] = r.of(k.Cluster)
		}
	}
	r.members.Replace(all, r.last)
	clear(r.virtual)
	for _, k := range r.storage.exports.Keys() {
		r.export(exports.Name{Cluster: k.Cluster, Name: k.Name}) // the resolver has been rebuilt before
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.watch {
		check(all)
	}
}

// Apply implements [feed.Follower].
func (r *readers) Apply(e feed.Event) {
	r.last = max(r.last, e.Revision)
	if r.building {
		return
	}
	switch e.Key.Resource {
	case r.storage.Resource:
		r.members.Put(e.Key.Cluster, r.of(e.Key.Cluster), e.Revision)
	case exports.Resource():
		r.export(exports.Name{Cluster: e.Key.Cluster, Name: e.Key.Name})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	check(r.watch[e.Key])
}

// check ends the watches that do not read the right objects any more.
func check(all map[*reader]struct{}) {
	for one := range all {
		if !one.current() {
			one.end()
		}
	}
}

// of returns the groups of a cluster: its ClusterCachedResources.
func (r *readers) of(c cluster.Name) []membership.In[exports.Name] {
	var all []membership.In[exports.Name]
	for _, one := range r.storage.Cached.List(c, "") {
		if !one.Deleting {
			all = append(all, membership.In[exports.Name]{Group: exports.Name{Cluster: c, Name: one.Name}, Selector: one.Part.String()})
		}
	}
	return all
}

// export tells the resolver which resources of consumers have changed with an export: those whose
// objects are in another kind of storage.
func (r *readers) export(name exports.Name) {
	before := r.virtual[name]
	now := map[schema.GroupResource]catalog.Storage{}
	if e, ok := r.storage.exports.Get(name.Cluster, "", name.Name); ok {
		for _, x := range e.Resources {
			if x.Virtual != nil {
				now[x.GroupResource] = x.Virtual.Storage()
			}
		}
	}
	if r.virtual[name] = now; len(now) == 0 {
		delete(r.virtual, name)
	}
	if maps.Equal(before, now) {
		return
	}
	for _, k := range r.storage.bindings.To(name) {
		for _, gr := range slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(now))) {
			r.storage.resolver.Changed(k.Cluster, gr)
		}
	}
}

// follow makes watches of an origin depend on the objects in on. After each change of such an
// object, it calls current, and ends the watches if current returns false.
func (r *readers) follow(o *serve.Origin, current func() bool, on ...keys.Key) {
	o.Until = func(ctx context.Context) (context.Context, func()) {
		ctx, cancel := context.WithCancel(ctx)
		one := &reader{current, cancel}
		r.join(one, on, true)
		if !current() {
			cancel() // it has changed since
		}
		// The definition of the objects may become that of others, too.
		ctx, ended := r.storage.resolver.WatchContext(ctx, o.Cluster, o.Found)
		return ctx, func() { ended(); r.join(one, on, false); cancel() }
	}
}

// join adds or removes a watch.
func (r *readers) join(one *reader, on []keys.Key, add bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range on {
		if add && r.watch[k] == nil {
			r.watch[k] = map[*reader]struct{}{}
		}
		if add {
			r.watch[k][one] = struct{}{}
		} else if delete(r.watch[k], one); len(r.watch[k]) == 0 {
			delete(r.watch, k)
		}
	}
}

// covers returns a function that refuses a watch from a revision before this origin was published,
// because the client may know objects of another origin. The client then lists again. since returns
// the latest revision at which the origin can have been published.
func (r *readers) covers(since func() int64) func(ctx context.Context, resourceVersion string) error {
	return func(ctx context.Context, resourceVersion string) error {
		if resourceVersion == "" || resourceVersion == "0" {
			return nil
		}
		from, err := r.storage.store.Epoch().Revision(resourceVersion)
		if err != nil {
			return err
		}
		if err := r.storage.store.Feed().CatchUp(ctx); err != nil {
			return err
		}
		if since() > from {
			return apierrors.NewResourceExpired("the provider has published other objects since this resource version; list them again")
		}
		return nil
	}
}
