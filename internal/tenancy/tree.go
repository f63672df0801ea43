package tenancy

import (
	"context"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// A Child is what the tree knows of a workspace.
type Child struct {
	Cluster cluster.Name
	Ready   bool
	// Phase is how far the Workspace says that it has come, Initializers whom it says
	// that it waits for, and Failing is true while a condition of it is False that it
	// must fulfil to be available.
	Phase        core.Phase
	Initializers []core.Initializer
	Failing      bool
	// Ending is true once deletion began, and Blocked says what keeps it from
	// coming to its end. Waits is true if that is for terminators to finish, and
	// Forced if the deletion is not to wait for anybody.
	Ending, Waits, Forced bool
	Blocked               string
	// Mount is set if something else serves the workspace.
	Mount *Mount
}

// The Tree knows which workspace of which cluster is which cluster.
type Tree struct {
	fresh    func(context.Context) bool
	children *store.Table[Child]
	clusters *store.Table[Root]
}

// A Root is what the tree knows of a cluster.
type Root struct {
	Path  cluster.Path
	Begun time.Time
	// Whole is true unless the server has to do something for its life to go on.
	Whole bool
	// Ending is true once deletion began.
	Ending bool
	// Phase is how far its life has come, and RequiredGroups what it asks of users.
	Phase          core.Phase
	RequiredGroups string
	// Inactive is true while it is taken offline.
	Inactive bool
	// Initializers are those that have not finished.
	Initializers []core.Initializer
	// Type is the path and name of the type that it is of, empty if it is of none.
	Type string
	// Moved is true while it says that it is reached where the server is not.
	Moved bool
	// Parent and Name are those of the Workspace that the cluster belongs to; empty
	// if it belongs to none.
	Parent cluster.Name
	Name   string
}

// NewTree returns the tree of the workspaces stored in a resource, for a server that
// is reached at baseURL.
func NewTree(s *store.Store, workspaces store.Resource, baseURL string) *Tree {
	return &Tree{
		fresh: s.Spine().Fresh,
		children: store.NewCustomTable(s, workspaces, func(w *childForm) (Child, error) {
			child := Child{Cluster: cluster.Name(w.Spec.Cluster), Ready: w.Status.Phase == core.PhaseReady, Ending: w.Metadata.DeletionTimestamp != nil}
			child.Phase, child.Initializers = known(w.Status.Phase), w.Status.Initializers
			child.Forced = child.Ending && w.Metadata.Annotations[core.ForceDeleteAnnotation] != ""
			child.Mount = mountOf(w)
			for _, c := range w.Status.Conditions {
				child.Failing = child.Failing || fails(c.Type, c.Status)
				if c.Type == string(core.WorkspaceContentDeleted) && (c.Reason == SomeFinalizersRemain || c.Reason == SomeTerminatorsRemain) {
					child.Blocked, child.Waits = c.Message, c.Reason == SomeTerminatorsRemain
				}
			}
			return child, nil
		}),
		clusters: store.NewCustomTable(s, LogicalClusters(), func(l *rootForm) (Root, error) {
			root := Root{
				Path: cluster.Path(l.Metadata.Annotations[core.PathAnnotation]), Begun: l.Metadata.CreationTimestamp.Time,
				Whole: l.whole(), Ending: l.Metadata.DeletionTimestamp != nil,
				Phase: known(l.Status.Phase), RequiredGroups: l.Metadata.Annotations[core.RequiredGroupsAnnotation],
				Initializers: l.Status.Initializers, Type: unique.Make(l.Metadata.Annotations[tenancyapi.TypeAnnotation]).Value(),
				Inactive: isInactive(l.Metadata.Annotations),
				Moved:    !strings.HasPrefix(l.Status.URL, baseURL+"/clusters/"),
			}
			if o := l.Spec.Owner; o != nil {
				root.Parent, root.Name = cluster.Name(o.Cluster), o.Name
			}
			return root, nil
		}),
	}
}

// known returns a phase without keeping the text that it was decoded from.
func known(p core.Phase) core.Phase {
	for _, one := range []core.Phase{core.PhaseReady, core.PhaseInitializing, core.PhaseScheduling, core.PhaseUnavailable, core.PhaseInactive, core.PhaseTerminating, core.PhaseDeleting} {
		if p == one {
			return one
		}
	}
	return p
}

// whole reports whether nothing has to be done for the life of a cluster to go on: it
// has everything that it begins with, and it is ready unless it waits for somebody.
func (l *rootForm) whole() bool {
	return l.Status.Phase != core.PhaseScheduling && (l.Status.Phase != core.PhaseInitializing || len(l.Status.Initializers) > 0)
}

// childForm and rootForm are what the tree reads of a Workspace and a LogicalCluster:
// the rest of them takes far longer to decode.
type (
	childForm struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
			Annotations       map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Cluster string            `json:"cluster"`
			URL     string            `json:"URL"`
			Mount   *tenancyapi.Mount `json:"mount"`
		} `json:"spec"`
		Status struct {
			Phase      core.Phase `json:"phase"`
			Conditions []struct {
				Type    string `json:"type"`
				Status  string `json:"status"`
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"conditions"`
			Initializers []core.Initializer `json:"initializers"`
		} `json:"status"`
	}
	rootForm struct {
		Metadata struct {
			CreationTimestamp metav1.Time       `json:"creationTimestamp"`
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
			Annotations       map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Owner *struct {
				Cluster string `json:"cluster"`
				Name    string `json:"name"`
			} `json:"owner"`
		} `json:"spec"`
		Status struct {
			Phase        core.Phase         `json:"phase"`
			URL          string             `json:"URL"`
			Initializers []core.Initializer `json:"initializers"`
		} `json:"status"`
	}
)

// Child returns the workspace of that name in cluster c.
func (t *Tree) Child(c cluster.Name, name string) (Child, bool) { return t.children.Get(c, "", name) }

// Children returns the workspaces in cluster c.
func (t *Tree) Children(c cluster.Name) []Child { return t.children.List(c, "") }

// PathOf returns the canonical path of a cluster, or its name if it has none.
func (t *Tree) PathOf(c cluster.Name) cluster.Path {
	if r, ok := t.Cluster(c); ok && r.Path != "" {
		return r.Path
	}
	return cluster.Path(c)
}

// Resolve returns the cluster at a path. If there is none it returns the cluster that
// the path leads to before it breaks off, and the name of the Workspace that would
// have to be in there.
func (t *Tree) Resolve(ctx context.Context, p cluster.Path) (n cluster.Name, missing string) {
	if n, missing = t.resolve(p); missing != "" && t.fresh(ctx) {
		return t.resolve(p)
	}
	return n, missing
}

func (t *Tree) resolve(p cluster.Path) (n cluster.Name, missing string) {
	n, words := p.Split()
	for _, w := range words {
		child, ok := t.Child(n, w)
		if !ok || child.Cluster == "" {
			return n, w
		}
		n = child.Cluster
	}
	return n, ""
}

// Unavailable reports whether a workspace that a path leads to, or through, says that it
// cannot be served.
func (t *Tree) Unavailable(p cluster.Path) bool {
	n, words := p.Split()
	for _, w := range words {
		child, ok := t.Child(n, w)
		switch {
		case !ok:
			return false
		case child.Phase == core.PhaseUnavailable:
			return true
		}
		n = child.Cluster
	}
	return false
}

// OnCluster has f called with every cluster whose LogicalCluster changes.
func (t *Tree) OnCluster(f func(cluster.Name)) (unsubscribe func()) {
	unsubscribe = t.clusters.Subscribe(func(k store.Key) { f(k.Cluster) })
	for _, k := range t.clusters.Keys() {
		f(k.Cluster)
	}
	return unsubscribe
}

// OnWorkspace has f called with the cluster and name of every Workspace that changes.
func (t *Tree) OnWorkspace(f func(c cluster.Name, name string)) (unsubscribe func()) {
	unsubscribe = t.children.Subscribe(func(k store.Key) { f(k.Cluster, k.Name) })
	for _, k := range t.children.Keys() {
		f(k.Cluster, k.Name)
	}
	return unsubscribe
}

// Orphans returns the clusters whose Workspace does not lead to them, which is for
// the caller to verify.
func (t *Tree) Orphans() []cluster.Name {
	var all []cluster.Name
	for _, k := range t.clusters.Keys() {
		if t.Orphan(k.Cluster) {
			all = append(all, k.Cluster)
		}
	}
	return all
}

// Orphan reports whether the Workspace of cluster c does not lead to it.
func (t *Tree) Orphan(c cluster.Name) bool {
	root, ok := t.Cluster(c)
	if !ok || root.Parent == "" {
		return false
	}
	child, ok := t.Child(root.Parent, root.Name)
	return !ok || child.Cluster != c
}

// Clusters returns all clusters that have a LogicalCluster.
func (t *Tree) Clusters() []cluster.Name {
	keys := t.clusters.Keys()
	all := make([]cluster.Name, len(keys))
	for i, k := range keys {
		all[i] = k.Cluster
	}
	return all
}

// Cluster returns what is known of cluster c, and whether it has a LogicalCluster.
func (t *Tree) Cluster(c cluster.Name) (Root, bool) {
	return t.clusters.Get(c, "", core.LogicalClusterName)
}
