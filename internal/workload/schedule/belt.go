package schedule

import (
	"slices"
	"sync"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// mostDomains is the maximum of failure domains that a belt remembers. A compute workspace has no more targets.
const mostDomains = 400

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
	if b.buckets == nil || len(b.buckets) > mostDomains { // labels of SyncTargets name the domains, and change
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
func (s *Scheduler) paced(task kcp.Key, snap place.Snapshot) place.Decision {
	d := place.Decide(snap)
	if len(d.Evicted) == 0 {
		s.belt.settled(task)
		return d
	}
	var again time.Duration
	waits := map[string]time.Duration{}
	snap.Targets = slices.Clone(snap.Targets)
	for i := range snap.Targets {
		t := &snap.Targets[i]
		if !slices.Contains(d.Evicted, t.Key) {
			continue
		}
		wait, asked := waits[t.Domain]
		if !asked {
			wait = s.belt.permit(task, t.Domain, place.RateOf(snap.Targets, t.Domain, s.options.Evictions))
			waits[t.Domain] = wait
		}
		t.Paced, again = wait > 0, max(again, wait)
	}
	if again == 0 {
		return d
	}
	d = place.Decide(snap)
	if d.Again == 0 || again < d.Again {
		d.Again = again
	}
	return d
}

// needed reports whether a PodDisruptionBudget of the namespace does not let the available pods of a
// workload stop at once.
func (s *Scheduler) needed(k *consumers.Kind, w *unstructured.Unstructured, available int32) bool {
	budgets := s.consumers.Kind(profile.Budgets().GroupResource())
	if budgets == nil || available == 0 || len(k.Template) == 0 {
		return false
	}
	of, _, err := unstructured.NestedStringMap(w.Object, append(slices.Clone(k.Template), "metadata", "labels")...)
	if err != nil {
		return false
	}
	for _, key := range budgets.In(kcp.KeyOf(w)) {
		var b policyv1.PodDisruptionBudget
		if o := budgets.Objects.Get(key); o == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b) != nil {
			continue
		}
		if b.Spec.Selector != nil && inventory.Selects(b.Spec.Selector, of) && b.Status.DisruptionsAllowed < available {
			return true
		}
	}
	return false
}
