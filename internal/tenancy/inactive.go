package tenancy

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// isInactive reports whether annotations of a LogicalCluster take it offline.
func isInactive(annotations map[string]string) bool {
	return annotations[core.InactiveAnnotation] == "true" || annotations[core.LegacyInactiveAnnotation] == "true"
}

// Inactive reports whether cluster c is taken offline.
func (t *Tree) Inactive(c cluster.Name) bool {
	root, _ := t.Cluster(c)
	return root.Inactive
}

// AllInactive returns the clusters that are taken offline.
func (t *Tree) AllInactive() []cluster.Name {
	var all []cluster.Name
	for _, k := range t.clusters.Keys() {
		if t.Inactive(k.Cluster) {
			all = append(all, k.Cluster)
		}
	}
	return all
}

// inactivity returns the phase of a cluster that is as in l: Ready ones that are taken
// offline are Inactive, and Inactive ones Ready when they are not any more.
func inactivity(l *core.LogicalCluster) core.Phase {
	switch offline := isInactive(l.Annotations); {
	case offline && l.Status.Phase == core.PhaseReady:
		return core.PhaseInactive
	case !offline && l.Status.Phase == core.PhaseInactive:
		return core.PhaseReady
	default:
		return l.Status.Phase
	}
}

// Repose has the phases of cluster c and of its Workspace say whether it is offline. It
// does nothing where they do.
func (w *Workspaces) Repose(ctx context.Context, c cluster.Name) error {
	for range retries {
		d, err := w.ofCluster(ctx, c, true)
		if err != nil || d == nil || d.root.DeletionTimestamp != nil {
			return err
		}
		phase := inactivity(d.root)
		if phase == d.root.Status.Phase {
			return nil
		}
		d.root.Status.Phase = phase
		setLabel(&d.root.ObjectMeta, core.PhaseLabel, string(phase))
		if d.workspace != nil && d.workspace.DeletionTimestamp == nil {
			setPhase(d.workspace, phase, metav1.Now().Rfc3339Copy())
		}
		if _, err = w.save(ctx, d); !moved(err) {
			return err
		}
	}
	return nil // whatever changed it wakes whoever asked
}
