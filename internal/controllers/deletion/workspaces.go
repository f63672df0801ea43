package deletion

import (
	"context"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/removal"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

const (
	// orphansEvery is the interval of the search for clusters whose Workspace is missing
	// without an event.
	orphansEvery = 10 * time.Minute
	// forgetAfter is the time for watch caches to process the deletion of a cluster.
	forgetAfter = 10 * time.Second
	// lookAgain limits the time for checks of blocked deletions: after a check, the
	// cluster rests this many times as long as the check took.
	lookAgain = 20
)

// Workspaces continues the deletion of workspaces with their clusters, and deletes clusters
// whose Workspace is missing.
//
// Its keys are those of Workspaces: the queue is fair by the cluster of the key, so that
// deletions of many workspaces do not delay those in other clusters. A key without a name is
// that of a cluster; it wakes the key of the cluster's Workspace, if there is one.
func Workspaces(r *removal.Remover, client func(cluster.Name) *rest.Config) control.Loop {
	w := r.Workspaces
	l := &deleter{Remover: r, store: w.Store, tree: w.Tree, delete: through(client), blocked: newAlarms(w.Store.Feed())}
	return control.Loop{
		Name:    "workspace-deletion",
		On:      trigger.On(w.Store.Feed(), l.subscribe),
		Workers: 32, // they mostly wait for etcd
		Slow:    slow,
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

type deleter struct {
	*removal.Remover
	store   *store.Store
	tree    *tree.Tree
	delete  removal.Delete
	blocked *alarms
}

func (l *deleter) subscribe(wake func(control.Key)) (unsubscribe func()) {
	l.blocked.start(wake)
	clusters := l.tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
	workspaces := l.tree.OnWorkspace(func(c cluster.Name, name string) {
		wake(control.Key{Cluster: c, Name: name})
		// The deletion of a cluster waits for its last workspace.
		if l.store.Feed().Ledger().Objects(c, l.Workspaces.Resource) == 0 {
			wake(control.Key{Cluster: c})
		}
	})
	wake(control.Key{Cluster: cluster.All})
	return func() { clusters(); workspaces() }
}

func (l *deleter) workspace(ctx context.Context, k control.Key) error {
	child, ok := l.tree.Child(k.Cluster, k.Name)
	if !ok || !child.Ending {
		return nil
	}
	return l.work(ctx, k, child.Cluster, func() (removal.Progress, error) {
		return l.End(ctx, k.Cluster, k.Name, l.delete)
	})
}

func (l *deleter) cluster(ctx context.Context, k control.Key) error {
	root, ok := l.tree.Cluster(k.Cluster)
	orphan := l.tree.Orphan(k.Cluster)
	switch {
	case !ok:
		l.blocked.clear(k.Cluster)
		if l.store.Forget(k.Cluster) {
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
	return l.work(ctx, k, k.Cluster, func() (removal.Progress, error) {
		return l.EndCluster(ctx, k.Cluster, l.delete)
	})
}

// work continues the deletion of cluster c.
func (l *deleter) work(ctx context.Context, k control.Key, c cluster.Name, end func() (removal.Progress, error)) error {
	watched, rest := l.blocked.resting(c)
	if rest > 0 {
		return control.After(rest)
	}
	for {
		began := time.Now()
		p, err := end()
		if p == removal.Blocked && !watched {
			// From now on, changes wake the loop. Check once more for changes before.
			l.blocked.set(c, k)
			watched = true
			continue
		}
		switch {
		case p == removal.Blocked:
			l.blocked.rest(c, lookAgain*time.Since(began))
			l.above(k)
		case err == nil:
			l.blocked.clear(c)
		}
		switch {
		case err != nil:
			return err
		case p == removal.Unfinished:
			return control.After(0)
		case p == removal.Terminating, p == removal.Kept:
			l.above(k)
		case p == removal.Held:
			l.above(k)
			fallthrough
		case p == removal.Ended:
			klog.FromContext(ctx).Info("logical cluster deleted", "deleted", c)
		}
		return nil
	}
}

// above wakes the deletion of the cluster of a Workspace, to copy the obstacle there.
func (l *deleter) above(k control.Key) {
	if parent, ok := l.tree.Cluster(k.Cluster); ok && parent.Ending && k.Name != "" {
		l.blocked.wake(control.Key{Cluster: k.Cluster})
	}
}

// through returns a function that deletes objects through the API, in the version that they are
// stored in.
func through(client func(cluster.Name) *rest.Config) removal.Delete {
	return func(ctx context.Context, item store.Item) error {
		gv, err := item.APIVersion(ctx)
		if err != nil {
			return err
		}
		return remove(ctx, client, gv.WithResource(item.Resource.Resource), item)
	}
}
