// Package tree knows the workspaces and their types, in memory: which cluster a path leads to, what is
// above a cluster, whose tenant it is, and which limits and types it has. It hides how that follows the
// change feed.
package tree

import (
	"context"
	"slices"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// LogicalClusters returns the resource of LogicalClusters. They belong to no export.
func LogicalClusters() keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: core.GroupVersion.Group, Resource: "logicalclusters"}, "")
}

// A Child is the row of the tree for a Workspace.
type Child struct {
	Cluster cluster.Name
	Ready   bool
	// Phase and Initializers are from the status. Failing is true while a condition makes
	// the workspace unavailable.
	Phase        core.Phase
	Initializers []core.Initializer
	Failing      bool
	// Ending is true while the Workspace is being deleted. Forced is true if the deletion
	// does not wait for finalizers and terminators. Blocked and Reason are the message and
	// the reason of the condition about obstacles of the deletion.
	Ending, Forced  bool
	Blocked, Reason string
	// Mount is set if another server serves the workspace.
	Mount *Mount
}

// A Tree maps workspaces to their clusters, in memory.
type Tree struct {
	fresh    func(context.Context) bool
	children *feed.Table[Child]
	clusters *feed.Table[Root]
	boundary func(typeID string) bool // see [Types.Boundary]
}

// A Root is the row of the tree for a LogicalCluster.
type Root struct {
	Path    cluster.Path
	Created time.Time
	// Whole is false while the server must complete the creation.
	Whole bool
	// Ending is true while the cluster is being deleted.
	Ending bool
	// Defaulted is true once the default bindings of the type were made. Reconciled is true if none of
	// them waits afterwards.
	Defaulted, Reconciled bool
	// Phase is from the status. RequiredGroups is the annotation with the groups that
	// users must have.
	Phase          core.Phase
	RequiredGroups string
	// Inactive is true while the cluster is offline.
	Inactive bool
	// Initializers and Terminators are the unfinished ones.
	Initializers []core.Initializer
	Terminators  []core.Terminator
	// Type is the path and name of the type, empty if the cluster has none.
	Type string
	// StaleURL is true while the status has a URL of another server address.
	StaleURL bool
	// Limits are those in the annotations, nil if there are none.
	Limits *Limits
	// Parent and Name are the cluster and name of the Workspace; empty if there is none.
	Parent cluster.Name
	Name   string
}

// NewTree returns the tree of the stored workspaces of a resource. baseURL is the URL of the
// server for clients.
func NewTree(s *store.Store, workspaces keys.Resource, baseURL string) *Tree {
	return &Tree{
		fresh: s.Feed().Fresh,
		children: feed.NewCustomTable(s.Feed(), workspaces, func(w *childForm) (Child, error) {
			child := Child{Cluster: cluster.Name(w.Spec.Cluster), Ready: w.Status.Phase == core.PhaseReady, Ending: w.Metadata.DeletionTimestamp != nil}
			child.Phase, child.Initializers = known(w.Status.Phase), w.Status.Initializers
			child.Forced = child.Ending && w.Metadata.Annotations[core.ForceDeleteAnnotation] != ""
			child.Mount = mountOf(w)
			for _, c := range w.Status.Conditions {
				child.Failing = child.Failing || MakesUnavailable(c.Type, c.Status)
				if c.Type == string(core.WorkspaceContentDeleted) && blocks(c.Reason) {
					child.Blocked, child.Reason = c.Message, c.Reason
				}
			}
			return child, nil
		}).IndexBy(Child.waiting),
		clusters: feed.NewCustomTable(s.Feed(), LogicalClusters(), func(l *rootForm) (Root, error) {
			root := Root{
				Path: cluster.Path(l.Metadata.Annotations[core.PathAnnotation]), Created: l.Metadata.CreationTimestamp.Time,
				Whole: l.whole(), Ending: l.Metadata.DeletionTimestamp != nil,
				Phase: known(l.Status.Phase), RequiredGroups: l.Metadata.Annotations[core.RequiredGroupsAnnotation],
				Initializers: l.Status.Initializers, Terminators: l.Status.Terminators, Type: unique.Make(l.Metadata.Annotations[tenancyapi.TypeAnnotation]).Value(),
				Inactive: IsInactive(l.Metadata.Annotations), Limits: limitsOf(l.Metadata.Annotations),
				Defaulted: isTrue(l.Status.Conditions, core.APIBindingsInitialized), Reconciled: isTrue(l.Status.Conditions, core.APIBindingsReconciled),
				StaleURL: !strings.HasPrefix(l.Status.URL, baseURL+"/clusters/"),
			}
			if o := l.Spec.Owner; o != nil {
				root.Parent, root.Name = cluster.Name(o.Cluster), o.Name
			}
			return root, nil
		}).IndexBy(func(r Root) []string { return []string{r.Type} }),
	}
}

// Fresh waits until the tree is current, and reports whether it waited.
func (t *Tree) Fresh(ctx context.Context) bool { return t.fresh(ctx) }

// isTrue reports whether a condition is True.
func isTrue(all []conditionForm, of conditions.Type) bool {
	return slices.ContainsFunc(all, func(c conditionForm) bool { return c.Type == string(of) && c.Status == string(metav1.ConditionTrue) })
}

// known returns the constant of a phase, so that the decoded text can be freed.
func known(p core.Phase) core.Phase {
	for _, one := range []core.Phase{core.PhaseReady, core.PhaseInitializing, core.PhaseScheduling, core.PhaseUnavailable, core.PhaseInactive, core.PhaseTerminating, core.PhaseDeleting} {
		if p == one {
			return one
		}
	}
	return p
}

// whole reports whether the creation of a cluster is complete: it has its initial content,
// and it is initialized or has unfinished initializers.
func (l *rootForm) whole() bool {
	return l.Status.Phase != core.PhaseScheduling && (l.Status.Phase != core.PhaseInitializing || len(l.Status.Initializers) > 0)
}

// childForm and rootForm are the parts of a Workspace and a LogicalCluster that the tree
// decodes. Decoding whole objects would take far longer.
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
			Terminators  []core.Terminator  `json:"terminators"`
			Conditions   []conditionForm    `json:"conditions"`
		} `json:"status"`
	}
	conditionForm struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	}
)

// Child returns the workspace of that name in cluster c, and whether it exists.
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

// Resolve returns the cluster at a path. If a Workspace on the path is missing, it returns
// the name of that Workspace and the cluster in which it is missing.
func (t *Tree) Resolve(ctx context.Context, p cluster.Path) (n cluster.Name, missing string) {
	if n, missing = t.Known(p); missing != "" && t.fresh(ctx) {
		return t.Known(p)
	}
	return n, missing
}

// Known is [Tree.Resolve] as far as this process knows. It does not block.
func (t *Tree) Known(p cluster.Path) (n cluster.Name, missing string) {
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

// Unavailable reports whether a workspace on a path has the phase Unavailable.
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

// OnCluster calls f with all clusters, and then with every cluster whose LogicalCluster
// changes, until unsubscribe is called.
func (t *Tree) OnCluster(f func(cluster.Name)) (unsubscribe func()) {
	unsubscribe = t.clusters.Subscribe(func(k keys.Key) { f(k.Cluster) })
	for _, k := range t.clusters.Keys() {
		f(k.Cluster)
	}
	return unsubscribe
}

// OnWorkspace calls f with the cluster and name of all Workspaces, and then of every
// Workspace that changes, until unsubscribe is called.
func (t *Tree) OnWorkspace(f func(c cluster.Name, name string)) (unsubscribe func()) {
	unsubscribe = t.children.Subscribe(func(k keys.Key) { f(k.Cluster, k.Name) })
	for _, k := range t.children.Keys() {
		f(k.Cluster, k.Name)
	}
	return unsubscribe
}

// Orphans returns the clusters whose Workspace is missing or has another cluster. The data
// may be stale, so the caller must verify it.
func (t *Tree) Orphans() []cluster.Name {
	var all []cluster.Name
	for _, k := range t.clusters.Keys() {
		if t.Orphan(k.Cluster) {
			all = append(all, k.Cluster)
		}
	}
	return all
}

// Orphan reports whether the Workspace of cluster c is missing or has another cluster.
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

// Cluster returns the row of cluster c, and whether it has a LogicalCluster.
func (t *Tree) Cluster(c cluster.Name) (Root, bool) {
	return t.clusters.Get(c, "", core.LogicalClusterName)
}
