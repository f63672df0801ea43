package tenancy

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// isInactive reports whether the annotations of a LogicalCluster take it offline.
func isInactive(annotations map[string]string) bool {
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

// inactivity returns the new phase of a cluster: Inactive if it is Ready and offline, Ready
// if it is Inactive and not offline, and otherwise its current phase.
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

// UpdateInactive updates the phases of cluster c and its Workspace after it was taken offline or
// online. It writes nothing if they are current.
func (w *Workspaces) UpdateInactive(ctx context.Context, c cluster.Name) error {
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
	return nil // the concurrent changes wake the loop again
}
