// Package garbage collects garbage in all clusters: objects whose owners are gone. It hides the graph
// of owners and dependents, and how a stored object is read again before it is deleted.
package garbage

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// workers limits the concurrent deletions.
const workers = 16

// A Collector is the garbage collector of all clusters, with the rules of Kubernetes. It deletes
// objects without owners, and finishes the deletion of owners that waits for dependents. Owners
// and dependents are always in the same cluster. It follows the change feed, with the ownership
// graph of all clusters.
type Collector struct {
	store *store.Store
	kinds *catalog.Kinds
	// client returns the configuration of clients with all rights in one cluster.
	client func(cluster.Name) *rest.Config

	mu       sync.Mutex // guards the fields below
	graph    *ownership
	building *ownership // during a rebuild, else nil
	wakers   map[int]func(control.Key)
	next     int
	// unserved has the objects that wait for a kind that is not served.
	unserved map[cluster.Name]map[objectID]struct{}
	// unknown has the objects whose owners and finalizers cannot be read. Any object of
	// their cluster may be their owner.
	unknown map[cluster.Name]map[keys.Key]struct{}
}

// New returns the collector of the objects in a store, whose change feed must not have started.
// client returns the configuration of clients with all rights in one cluster.
func New(s *store.Store, kinds *catalog.Kinds, client func(cluster.Name) *rest.Config) *Collector {
	g := &Collector{
		store: s, kinds: kinds, client: client,
		graph: newOwnership(), wakers: map[int]func(control.Key){}, unserved: map[cluster.Name]map[objectID]struct{}{}, unknown: map[cluster.Name]map[keys.Key]struct{}{},
	}
	s.Feed().Follow(g)
	return g
}

// Loop returns the loop that collects garbage.
func (g *Collector) Loop() control.Loop {
	return control.Loop{
		Name:    "garbage-collection",
		On:      trigger.On(g.store.Feed(), g.subscribe),
		Workers: workers,
		Slow:    workers, // webhooks of tenants may hang
		Do: func(ctx context.Context, k control.Key) error {
			return g.do(ctx, objectID{k.Cluster, types.UID(k.Name)})
		},
	}
}

var _ feed.Follower = (*Collector)(nil)

// subscribe is [control.Source.Subscribe]. The names of keys are the UIDs of objects.
func (g *Collector) subscribe(wake func(control.Key)) (unsubscribe func()) {
	g.mu.Lock()
	n := g.next
	g.next++
	g.wakers[n] = wake
	due := g.graph.due()
	g.mu.Unlock()
	for _, id := range due {
		wake(id.key())
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.wakers, n)
	}
}

func (id objectID) key() control.Key { return control.Key{Cluster: id.cluster, Name: string(id.uid)} }

// change calls f to change the graph, and then wakes the objects that need a check.
func (g *Collector) change(f func()) {
	awake, wakers := g.changed(f)
	for _, wake := range wakers {
		for _, id := range awake {
			wake(id.key())
		}
	}
}

// changed calls f with the lock, and returns the objects to wake. It unlocks also if f
// panics.
func (g *Collector) changed(f func()) (awake []objectID, wakers []func(control.Key)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	for _, wake := range g.wakers {
		wakers = append(wakers, wake)
	}
	return g.graph.woken(), wakers
}

// Reset implements [feed.Follower].
func (g *Collector) Reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.unknown)
	g.building = newOwnership()
	g.building.ticks = g.graph.ticks // results for the old graph do not apply to the new one
}

// Done implements [feed.Follower].
func (g *Collector) Done() {
	g.change(func() {
		g.graph, g.building = g.building, nil
		g.graph.awake = g.graph.due()
	})
}

// Apply implements [feed.Follower].
func (g *Collector) Apply(e feed.Event) {
	if e.Key.Root == keys.System || ephemeral(e.Key.Resource) {
		return
	}
	m, err := e.Metadata(context.Background())
	if err != nil && !e.Deleted() {
		klog.Background().Error(err, "Garbage collection waits in this logical cluster until the object can be read", "key", e.Key.String())
		g.Unknown(e.Key)
		return
	}
	g.known(e.Key)
	if err != nil {
		return // a deleted object without metadata
	}
	id := objectID{e.Key.Cluster, m.UID}
	// Most objects have no owners or dependents. For these, concerns allocates nothing.
	matters, apis := g.concerns(id, e.Key.Resource, m)
	if !matters && !apis {
		return
	}
	g.change(func() {
		if apis {
			g.served(e.Key.Cluster)
		}
		if !matters {
			return
		}
		if e.Deleted() {
			g.current().drop(id, placeOf(e.Key))
			return
		}
		g.current().put(owned{id: id, at: placeOf(e.Key), owners: references(e.Key.Namespace, m.Owners), phase: phaseOf(m)})
	})
}

// concerns reports whether a change of an object matters to the graph, and whether it may
// change which kinds its cluster serves.
func (g *Collector) concerns(id objectID, r keys.Resource, m values.Metadata) (matters, apis bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	matters = len(m.Owners) > 0 || g.current().nodes[id] != nil || phaseOf(m).waits()
	return matters, g.building == nil && len(g.unserved[id.cluster]) > 0 && definesAPIs(r)
}

// Unknown implements [feed.Careful].
func (g *Collector) Unknown(k keys.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unknown[k.Cluster] == nil {
		g.unknown[k.Cluster] = map[keys.Key]struct{}{}
	}
	g.unknown[k.Cluster][k] = struct{}{}
}

// known removes an object from unknown, and wakes the deletions that waited for it.
func (g *Collector) known(k keys.Key) {
	g.mu.Lock()
	_, was := g.unknown[k.Cluster][k]
	if delete(g.unknown[k.Cluster], k); len(g.unknown[k.Cluster]) == 0 {
		delete(g.unknown, k.Cluster)
	}
	g.mu.Unlock()
	if !was {
		return
	}
	g.change(func() {
		for id, n := range g.graph.nodes {
			if id.cluster == k.Cluster && n.waits() {
				g.graph.awake = append(g.graph.awake, id)
			}
		}
	})
}

// unreadable returns an object of a cluster whose owners are unknown.
func (g *Collector) unreadable(c cluster.Name) (keys.Key, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k := range g.unknown[c] {
		return k, true
	}
	return keys.Key{}, false
}

// current returns the graph that events change. The caller holds the lock.
func (g *Collector) current() *ownership {
	if g.building != nil {
		return g.building
	}
	return g.graph
}

// served wakes the objects of a cluster that wait for a kind. The caller holds the lock.
func (g *Collector) served(c cluster.Name) {
	for id := range g.unserved[c] {
		g.graph.awake = append(g.graph.awake, id)
	}
}

// ephemeral reports whether objects of a resource expire. Kubernetes does not collect
// Events either.
func ephemeral(r keys.Resource) bool {
	return r.Root == keys.Native && r.Resource == "events" && r.Group == ""
}

// definesAPIs reports whether objects of a resource define the APIs of their cluster.
func definesAPIs(r keys.Resource) bool {
	return r.Resource == "customresourcedefinitions" && r.Group == "apiextensions.k8s.io" ||
		r.Resource == "apibindings" && r.Group == "apis.kcp.io"
}

func phaseOf(m values.Metadata) phase {
	return phase{
		foreground: m.Deleting && slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents),
		orphaning:  m.Deleting && slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents),
	}
}

// references returns the owner references of an object in a namespace.
func references(namespace string, owners []metav1.OwnerReference) []reference {
	all := make([]reference, len(owners))
	for i, o := range owners {
		all[i] = reference{
			claim:  claim{apiVersion: o.APIVersion, kind: o.Kind, name: o.Name, namespace: namespace},
			uid:    o.UID,
			blocks: o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion,
		}
	}
	return all
}
