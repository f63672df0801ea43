package fleet

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
)

// health adds what the scheduler knows about the health of a target.
func (o Options) health(t *workload.SyncTarget, w *place.Target) {
	w.Domain = t.Labels["topology.kubernetes.io/region"] + "/" + t.Labels["topology.kubernetes.io/zone"]
	api := t.Status.Conditions.Get(workload.APIServerHealthy)
	since := t.Status.UnreachableSince
	if since == nil {
		w.AgentLost = unanswered(t)
		w.Cleaning = t.Status.Conditions.IsTrue(workload.Fenced)
		return
	}
	w.Unreachable = since.Time
	w.Fenced = fenced(t)
	w.Confirmed = api != nil && api.Reason == workload.DownByProbes
	if of := t.Status.LeaseSeconds; of != nil {
		w.LeaseEnd = since.Add(max(0, time.Duration(*of)*time.Second-o.Expire))
	}
}

// unanswered reports whether the agent of a target that was ready once does not report, or cannot work.
func unanswered(t *workload.SyncTarget) bool {
	beats := t.Status.Conditions.Get(workload.HeartbeatHealthy)
	return t.Status.UnreachableSince != nil || t.Status.LastSyncerHeartbeatTime != nil && beats != nil && beats.Status == metav1.ConditionFalse
}

// fenced reports whether an operator says that nothing runs at a target that does not answer. A fence
// is about one outage.
func fenced(t *workload.SyncTarget) bool {
	since := t.Status.UnreachableSince
	return since != nil && t.Spec.Fence != nil && t.Spec.Fence.UnreachableSince.Truncate(time.Second).Equal(since.Truncate(time.Second))
}

// setBelt brings the conditions Fenced and EvictionsHeld of a target up to date. It reports whether
// the target still removes what began elsewhere.
func (f *fleet) setBelt(ctx context.Context, t *workload.SyncTarget, id string) (cleans bool, err error) {
	next := t.Status.DeepCopy()
	cleans = next.Conditions.IsTrue(workload.Fenced) && !fenced(t) && (unanswered(t) || f.removes(id))
	changed := setFenced(&next.Conditions, fenced(t), cleans)
	changed = setHeld(&next.Conditions, f.inventory.Holds() && t.Status.UnreachableSince != nil && !fenced(t)) || changed
	if !changed {
		return cleans, nil
	}
	return cleans, f.saveStatus(ctx, t, next)
}

// setFenced sets the condition Fenced. A target that was never fenced does not have it.
func setFenced(all *conditions.Conditions, fenced, cleans bool) bool {
	c := conditions.Condition{Type: workload.Fenced, Status: metav1.ConditionTrue}
	switch {
	case fenced:
		c.Reason, c.Message = workload.ByOperator, "an operator says that nothing runs in the physical cluster: what runs at one place only begins elsewhere"
	case cleans:
		c.Reason, c.Message = workload.CleaningUp, "the physical cluster is back, and takes no workloads until it has removed what began elsewhere"
	case all.Get(workload.Fenced) == nil:
		return false
	default:
		c.Status, c.Severity, c.Reason = metav1.ConditionFalse, conditions.SeverityInfo, workload.NotFenced
	}
	return all.Set(c)
}

// setHeld sets the condition EvictionsHeld. A target from which workloads were never held does not
// have it.
func setHeld(all *conditions.Conditions, held bool) bool {
	c := conditions.Condition{Type: workload.EvictionsHeld, Status: metav1.ConditionTrue, Reason: workload.MostUnreachable,
		Message: "most physical clusters do not answer at once, so the server itself is the likely cause: nothing leaves them; if this one is gone, run: kubectl kcp workload fence"}
	if !held {
		if all.Get(workload.EvictionsHeld) == nil {
			return false
		}
		c = conditions.Condition{Type: workload.EvictionsHeld, Status: metav1.ConditionFalse, Severity: conditions.SeverityInfo, Reason: workload.FewUnreachable}
	}
	return all.Set(c)
}

// removes reports whether a target has parts that it shall remove.
func (f *fleet) removes(target string) bool {
	return f.consumers.AnyPart(target, func(p *workload.AssignedTarget) bool { return p.Phase == workload.Removing })
}
