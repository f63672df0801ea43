package tenancy

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// inactivity returns the new phase of a cluster: Inactive if it is Ready and offline, Ready
// if it is Inactive and not offline, and otherwise its current phase.
func inactivity(l *core.LogicalCluster) core.Phase {
	switch offline := tree.IsInactive(l.Annotations); {
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
	if c == cluster.Root || c.System() {
		return nil
	}
	for range retries {
		p, err := w.ReadPair(ctx, c)
		if err != nil || p == nil || p.Root.DeletionTimestamp != nil {
			return err
		}
		phase := inactivity(p.Root)
		if phase == p.Root.Status.Phase {
			return nil
		}
		p.Root.Status.Phase = phase
		setLabel(&p.Root.ObjectMeta, core.PhaseLabel, string(phase))
		if p.Workspace != nil && p.Workspace.DeletionTimestamp == nil {
			SetPhase(p.Workspace, phase, metav1.Now().Rfc3339Copy())
		}
		if _, err = w.SavePair(ctx, p); !Moved(err) {
			return err
		}
	}
	return nil // the concurrent changes wake the loop again
}
