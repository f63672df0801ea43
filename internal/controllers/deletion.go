package controllers

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

const (
	// orphansEvery is how often clusters are looked for whose Workspace vanished
	// without anybody having been told.
	orphansEvery = 10 * time.Minute
	// forgetAfter is how long watch caches have to hear of the end of a cluster.
	forgetAfter = 10 * time.Second
	// lookAgain bounds how much of its time a server spends on looking whether
	// finalizers are gone: a look is followed by a rest this many times as long.
	lookAgain = 20
)

// Deletion deletes workspaces, with their clusters, that somebody deleted, and
// clusters that have lost their Workspace.
//
// Its keys are those of Workspaces, so that all workspaces of one tenant take turns
// as one. A key without a name is that of a cluster: it is passed on to the
// Workspace that leads there, if one does.
func Deletion(d Deps) control.Loop {
	l := &deaths{Deps: d, tree: d.Workspaces.Tree, delete: through(d.Client), blocked: newAlarms(d.Store)}
	return control.Loop{
		Name:    "workspace-deletion",
		On:      []control.Source{{Ready: d.Store.Spine().Ready(), Subscribe: l.subscribe}},
		Workers: 32, // they mostly wait for etcd
		Do: func(ctx context.Context, k control.Key) error {
			switch {
			case k.Cluster == cluster.All:
				for _, c := range l.tree.Orphans() {
					l.blocked.wake(control.Key{Cluster: c})
				}
				return control.After(orphansEvery)
			case k.Name == "":
				return l.cluster(ctx, k)
			default:
				return l.workspace(ctx, k)
			}
		},
	}
}

type deaths struct {
	Deps
	tree    *tenancy.Tree
	delete  tenancy.Delete
	blocked *alarms
}

func (l *deaths) subscribe(wake func(control.Key)) (unsubscribe func()) {
	l.blocked.start(wake)
	clusters := l.tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
	workspaces := l.tree.OnWorkspace(func(c cluster.Name, name string) {
		wake(control.Key{Cluster: c, Name: name})
		// A cluster waits for the last of its workspaces.
		if l.Store.Spine().Ledger().Objects(c, l.Workspaces.Resource) == 0 {
			wake(control.Key{Cluster: c})
		}
	})
	wake(control.Key{Cluster: cluster.All})
	return func() { clusters(); workspaces() }
}

func (l *deaths) workspace(ctx context.Context, k control.Key) error {
	child, ok := l.tree.Child(k.Cluster, k.Name)
	if !ok || !child.Ending {
		return nil
	}
	return l.work(ctx, k, child.Cluster, func() (tenancy.Progress, error) {
		return l.Workspaces.End(ctx, k.Cluster, k.Name, l.delete)
	})
}

func (l *deaths) cluster(ctx context.Context, k control.Key) error {
	root, ok := l.tree.Cluster(k.Cluster)
	orphan := l.tree.Orphan(k.Cluster)
	switch {
	case !ok:
		l.blocked.clear(k.Cluster)
		if l.Store.Forget(k.Cluster) {
			return control.After(forgetAfter)
		}
		return nil
	case !root.Ending && !orphan:
		return nil
	case root.Parent != "" && !orphan:
		if child, _ := l.tree.Child(root.Parent, root.Name); child.Ending {
			l.blocked.wake(control.Key{Cluster: root.Parent, Name: root.Name})
			return nil
		}
	}
	return l.work(ctx, k, k.Cluster, func() (tenancy.Progress, error) {
		return l.Workspaces.EndCluster(ctx, k.Cluster, l.delete)
	})
}

// work goes on with the deletion of cluster c.
func (l *deaths) work(ctx context.Context, k control.Key, c cluster.Name, end func() (tenancy.Progress, error)) error {
	watched, rest := l.blocked.resting(c)
	if rest > 0 {
		return control.After(rest)
	}
	for {
		began := time.Now()
		p, err := end()
		if p == tenancy.Blocked && !watched {
			// What goes from now on is noticed. What went since is seen by one more look.
			l.blocked.set(c, k)
			watched = true
			continue
		}
		switch {
		case p == tenancy.Blocked:
			l.blocked.rest(c, lookAgain*time.Since(began))
			l.above(k)
		case err == nil:
			l.blocked.clear(c)
		}
		switch {
		case err != nil:
			return err
		case p == tenancy.Unfinished:
			return control.After(0)
		case p == tenancy.Terminating:
			l.above(k)
		case p == tenancy.Held:
			l.above(k)
			fallthrough
		case p == tenancy.Ended:
			klog.FromContext(ctx).Info("logical cluster deleted", "deleted", c)
		}
		return nil
	}
}

// above lets the cluster that a Workspace is in repeat what blocks that.
func (l *deaths) above(k control.Key) {
	if parent, ok := l.tree.Cluster(k.Cluster); ok && parent.Ending && k.Name != "" {
		l.blocked.wake(control.Key{Cluster: k.Cluster})
	}
}

// through returns how objects are deleted by way of the API, so that whoever
// has a say in it has it.
func through(client func(cluster.Name) *rest.Config) tenancy.Delete {
	return func(ctx context.Context, item store.Item) error {
		gv, err := item.APIVersion(ctx)
		if err != nil {
			return err
		}
		c, err := dynamic.NewForConfig(client(item.Cluster))
		if err != nil {
			return err
		}
		background := metav1.DeletePropagationBackground
		return c.Resource(gv.WithResource(item.Resource.Resource)).Namespace(item.Namespace).Delete(ctx, item.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &item.Metadata.UID}, PropagationPolicy: &background,
		})
	}
}

// alarms wake the loop when something changes in clusters whose deletion is
// blocked. It is a follower of the spine.
type alarms struct {
	mu    sync.RWMutex
	wakes func(control.Key)
	of    map[cluster.Name]*alarm
}

type alarm struct {
	key   control.Key
	until time.Time // of the rest
}

func newAlarms(s *store.Store) *alarms {
	a := &alarms{of: map[cluster.Name]*alarm{}}
	s.Spine().Follow(a)
	return a
}

func (a *alarms) start(wake func(control.Key)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wakes = wake
}

func (a *alarms) wake(k control.Key) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	a.wakes(k)
}

func (a *alarms) set(c cluster.Name, k control.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[c] = &alarm{key: k}
}

func (a *alarms) clear(c cluster.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, c)
}

func (a *alarms) rest(c cluster.Name, d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if it := a.of[c]; it != nil {
		it.until = time.Now().Add(d)
	}
}

// resting reports whether there is an alarm for c, and how much of its rest is left.
func (a *alarms) resting(c cluster.Name) (set bool, rest time.Duration) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	it := a.of[c]
	if it == nil {
		return false, 0
	}
	return true, time.Until(it.until)
}

// Reset implements [store.Follower].
func (a *alarms) Reset() {}

// Apply implements [store.Follower].
func (a *alarms) Apply(e store.Event) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if it := a.of[e.Key.Cluster]; it != nil && e.Key.Resource != tenancy.LogicalClusters() {
		a.wakes(it.key)
	}
}

// Done implements [store.Follower].
func (a *alarms) Done() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, it := range a.of {
		a.wakes(it.key)
	}
}
