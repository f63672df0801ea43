package tree

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Condition reasons for the remaining content of a cluster that is being deleted.
const (
	// SomeResourcesRemain means that the server is deleting the content.
	SomeResourcesRemain = "SomeResourcesRemain"
	// SomeFinalizersRemain means that clients must remove finalizers.
	SomeFinalizersRemain = "SomeFinalizersRemain"
	// SomeDeletionsRefused means that webhooks or policies refuse to delete objects.
	SomeDeletionsRefused = "SomeDeletionsRefused"
	// SomeTerminatorsRemain means that terminators must finish before the content is
	// deleted.
	SomeTerminatorsRemain = "SomeTerminatorsRemain"
	// SomeObjectsUnreadable means that the finalizers of objects are unknown, because the
	// objects cannot be read.
	SomeObjectsUnreadable = "SomeObjectsUnreadable"
)

// blocks reports whether a reason means that the deletion waits for an action of a user.
func blocks(reason string) bool {
	return reason == SomeFinalizersRemain || reason == SomeDeletionsRefused || reason == SomeTerminatorsRemain || reason == SomeObjectsUnreadable
}

// IsInactive reports whether the annotations of a LogicalCluster take it offline.
func IsInactive(annotations map[string]string) bool {
	return annotations[core.InactiveAnnotation] == "true" || annotations[core.LegacyInactiveAnnotation] == "true"
}

// Inactive reports whether cluster c is offline.
func (t *Tree) Inactive(c cluster.Name) bool {
	root, _ := t.Cluster(c)
	return root.Inactive
}

// AllInactive returns the offline clusters.
func (t *Tree) AllInactive() []cluster.Name {
	var all []cluster.Name
	for _, k := range t.clusters.Keys() {
		if t.Inactive(k.Cluster) {
			all = append(all, k.Cluster)
		}
	}
	return all
}

// MakesUnavailable reports whether a condition makes a Ready workspace Unavailable.
func MakesUnavailable(condition, status string) bool {
	return strings.HasPrefix(condition, "Workspace") && status == string(metav1.ConditionFalse)
}

// Incomplete reports, by the data in memory, whether the creation of a cluster has to be completed, or
// whether its Workspace lacks what the LogicalCluster says.
func (t *Tree) Incomplete(c cluster.Name) bool {
	root, ok := t.Cluster(c)
	switch {
	case !ok || root.Ending || root.Phase == core.PhaseTerminating || root.Phase == core.PhaseDeleting:
		return false
	case !root.Whole:
		return true
	case root.Parent == "":
		return false
	}
	child, ok := t.Child(root.Parent, root.Name)
	return ok && child.Cluster == c && !child.Ending &&
		(child.Phase != AvailablePhase(root.Phase, child.Failing) || !slices.Equal(child.Initializers, root.Initializers))
}

// Unscheduled reports whether a Workspace waits for a shard.
func (c Child) Unscheduled() bool { return c.Cluster == "" && c.Mount == nil && !c.Ending }

// waiting indexes the Workspaces that wait for a shard.
func (c Child) waiting() []string {
	if c.Unscheduled() {
		return []string{tenancyapi.Unschedulable}
	}
	return nil
}

// Unscheduled returns the keys of all Workspaces that wait for a shard.
func (t *Tree) Unscheduled() []keys.Key { return t.children.KeysBy(tenancyapi.Unschedulable) }

// OfType returns the clusters of a type that have a Workspace and are not being deleted.
func (t *Tree) OfType(name string) []cluster.Name {
	var all []cluster.Name
	for _, c := range t.clusters.ClustersBy(name) {
		if root, ok := t.Cluster(c); ok && root.Parent != "" && !root.Ending {
			all = append(all, c)
		}
	}
	return all
}

// AvailablePhase returns the phase of a Workspace whose cluster is in phase p. It is Unavailable
// if the cluster is Ready and a condition of the Workspace fails.
func AvailablePhase(p core.Phase, failing bool) core.Phase {
	if p == core.PhaseReady && failing {
		return core.PhaseUnavailable
	}
	return p
}
