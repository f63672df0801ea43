package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
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
	return f.anyPart(target, func(p *workload.AssignedTarget) bool { return p.Phase == workload.Removing })
}

// A belt limits how many workloads begin to leave targets that do not answer, by failure domain.
type belt struct {
	mu      sync.Mutex
	buckets map[string]place.Bucket     // guarded by mu
	waiting map[string]map[kcp.Key]bool // workloads by failure domain; guarded by mu
}

// permit takes a permit for a workload to leave a target. Without one, it returns when to try again.
func (b *belt) permit(task kcp.Key, domain string, rate place.Rate) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buckets == nil || len(b.buckets) > mostTargets { // labels of SyncTargets name the domains, and change
		b.buckets, b.waiting = map[string]place.Bucket{}, map[string]map[kcp.Key]bool{}
	}
	next, ok := b.buckets[domain].Take(rate, time.Now())
	b.buckets[domain] = next
	if ok {
		delete(b.waiting[domain], task)
		return 0
	}
	if b.waiting[domain] == nil {
		b.waiting[domain] = map[kcp.Key]bool{}
	}
	b.waiting[domain][task] = true
	return place.Turn(rate, task.Name+string(task.Cluster)+task.Namespace, len(b.waiting[domain]))
}

// settled forgets a workload that waits for no permit any more.
func (b *belt) settled(task kcp.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for domain, waiting := range b.waiting {
		if delete(waiting, task); len(waiting) == 0 {
			delete(b.waiting, domain)
		}
	}
}

// paced returns the decision about a workload, which begins to leave targets that do not answer only
// with a permit for each failure domain.
func (f *fleet) paced(task kcp.Key, s place.Snapshot) place.Decision {
	d := place.Decide(s)
	if len(d.Evicted) == 0 {
		f.belt.settled(task)
		return d
	}
	var again time.Duration
	waits := map[string]time.Duration{}
	s.Targets = slices.Clone(s.Targets)
	for i := range s.Targets {
		t := &s.Targets[i]
		if !slices.Contains(d.Evicted, t.Key) {
			continue
		}
		wait, asked := waits[t.Domain]
		if !asked {
			wait = f.belt.permit(task, t.Domain, place.RateOf(s.Targets, t.Domain, f.options.Evictions))
			waits[t.Domain] = wait
		}
		t.Paced, again = wait > 0, max(again, wait)
	}
	if again == 0 {
		return d
	}
	d = place.Decide(s)
	if d.Again == 0 || again < d.Again {
		d.Again = again
	}
	return d
}

// needed reports whether a PodDisruptionBudget of the namespace does not let the available pods of a
// workload stop at once.
func (f *fleet) needed(k *kind, w *unstructured.Unstructured, available int32) bool {
	budgets := f.kinds.get(profile.Budgets().GroupResource())
	if budgets == nil || available == 0 || len(k.Template) == 0 {
		return false
	}
	of, _, err := unstructured.NestedStringMap(w.Object, append(slices.Clone(k.Template), "metadata", "labels")...)
	if err != nil {
		return false
	}
	for _, key := range budgets.objects.By(byNamespace, namespaceKey(kcp.KeyOf(w))) {
		var b policyv1.PodDisruptionBudget
		if o := budgets.objects.Get(key); o == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b) != nil {
			continue
		}
		if b.Spec.Selector != nil && inventory.Selects(b.Spec.Selector, of) && b.Status.DisruptionsAllowed < available {
			return true
		}
	}
	return false
}
