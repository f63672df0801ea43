package controllers

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
)

// garbageWorkers bounds the deletions that are under way at once.
const garbageWorkers = 16

// Garbage deletes objects whose owners are gone, and lets owners go whose deletion
// waits for their dependents, as Kubernetes' garbage collector does, in every
// cluster. Owners are looked for in the cluster of their dependents alone.
func Garbage(d Deps) control.Loop {
	g := &garbage{deps: d, graph: newOwnership(), wakers: map[int]func(control.Key){}, unserved: map[objectID]struct{}{}}
	d.Store.Spine().Follow(g)
	return control.Loop{
		Name:    "garbage-collection",
		On:      []control.Source{{Ready: d.Store.Spine().Ready(), Subscribe: g.subscribe}},
		Workers: garbageWorkers,
		Do: func(ctx context.Context, k control.Key) error {
			return g.do(ctx, objectID{k.Cluster, types.UID(k.Name)})
		},
	}
}

// garbage holds the ownership graph of all clusters. It is a follower of the spine.
type garbage struct {
	deps Deps

	mu       sync.Mutex // guards all below
	graph    *ownership
	building *ownership // during a rebuild, else nil
	wakers   map[int]func(control.Key)
	next     int
	unserved map[objectID]struct{} // what waits for its cluster to serve another kind
}

var _ store.Follower = (*garbage)(nil)

// subscribe is that of the loop's source: objects go by their UIDs.
func (g *garbage) subscribe(wake func(control.Key)) (unsubscribe func()) {
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

// change changes the books, and wakes those that it concerns once they show it.
func (g *garbage) change(f func()) {
	g.mu.Lock()
	f()
	awake := g.graph.woken()
	wakers := make([]func(control.Key), 0, len(g.wakers))
	for _, wake := range g.wakers {
		wakers = append(wakers, wake)
	}
	g.mu.Unlock()
	for _, wake := range wakers {
		for _, id := range awake {
			wake(id.key())
		}
	}
}

// Reset implements [store.Follower].
func (g *garbage) Reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.building = newOwnership()
	g.building.ticks = g.graph.ticks // what is learned of the old graph is not meant for the new one
}

// Done implements [store.Follower].
func (g *garbage) Done() {
	g.change(func() {
		g.graph, g.building = g.building, nil
		g.graph.awake = g.graph.due()
	})
}

// Apply implements [store.Follower].
func (g *garbage) Apply(e store.Event) {
	if e.Key.Root == store.System || ephemeral(e.Key.Resource) {
		return
	}
	m, err := e.Metadata(context.Background())
	if err != nil {
		klog.Background().Error(err, "Stored object left out of garbage collection", "key", e.Key.String())
		return
	}
	id := objectID{e.Key.Cluster, m.UID}
	// Most objects have nothing to do with garbage collection: this allocates nothing.
	g.mu.Lock()
	matters := len(m.Owners) > 0 || g.books().nodes[id] != nil || phaseOf(m).waits()
	apis := g.building == nil && len(g.unserved) > 0 && definesAPIs(e.Key.Resource)
	g.mu.Unlock()
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
			g.books().drop(id, placeOf(e.Key))
			return
		}
		g.books().put(owned{id: id, at: placeOf(e.Key), owners: references(e.Key.Namespace, m.Owners), phase: phaseOf(m)})
	})
}

// books returns the graph that events go to. Called locked.
func (g *garbage) books() *ownership {
	if g.building != nil {
		return g.building
	}
	return g.graph
}

// served wakes what waits for a cluster to serve another kind. Called locked.
func (g *garbage) served(c cluster.Name) {
	for id := range g.unserved {
		if id.cluster == c {
			g.graph.awake = append(g.graph.awake, id)
		}
	}
}

// ephemeral reports whether objects of a resource end by themselves and soon.
// Kubernetes leaves Events alone too.
func ephemeral(r store.Resource) bool {
	return r.Root == store.Native && r.Resource == "events" && r.Group == ""
}

// definesAPIs reports whether objects of a resource say what their cluster serves.
func definesAPIs(r store.Resource) bool {
	return r.Resource == "customresourcedefinitions" && r.Group == "apiextensions.k8s.io" ||
		r.Resource == "apibindings" && r.Group == "apis.kcp.io"
}

func phaseOf(m store.Metadata) phase {
	return phase{
		foreground: m.Deleting && slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents),
		orphaning:  m.Deleting && slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents),
	}
}

// references returns the owners that an object in a namespace names.
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
