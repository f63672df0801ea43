package provider

import (
	"k8s.io/client-go/util/workqueue"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// NewQueue returns the queue of a controller that takes turns between tenants: a tenant with
// many objects to reconcile delays others by one of them, not by all. It fits the field
// NewQueue of the options of a controller:
//
//	provider.For(mgr, &Widget{}).WithOptions(mccontroller.Options{NewQueue: provider.NewQueue})
//
// A failed reconciliation is retried as the rate limiter says. The default of
// controller-runtime delays each object for itself.
func NewQueue(name string, limiter workqueue.TypedRateLimiter[mcreconcile.Request]) workqueue.TypedRateLimitingInterface[mcreconcile.Request] {
	turns := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[mcreconcile.Request]{Name: name, Queue: &turns{waiting: map[string][]mcreconcile.Request{}}})
	delayed := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[mcreconcile.Request]{Name: name, Queue: turns})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[mcreconcile.Request]{Name: name, DelayingQueue: delayed})
}

// turns has the waiting requests of each tenant. The workqueue guards it.
type turns struct {
	next    []string // tenants with waiting requests, the next one first
	waiting map[string][]mcreconcile.Request
	count   int
}

// Touch implements workqueue.Queue.
func (t *turns) Touch(mcreconcile.Request) {}

// Push implements workqueue.Queue.
func (t *turns) Push(r mcreconcile.Request) {
	tenant := string(r.ClusterName)
	if len(t.waiting[tenant]) == 0 {
		t.next = append(t.next, tenant)
	}
	t.waiting[tenant] = append(t.waiting[tenant], r)
	t.count++
}

// Len implements workqueue.Queue.
func (t *turns) Len() int { return t.count }

// Pop implements workqueue.Queue.
func (t *turns) Pop() mcreconcile.Request {
	tenant := t.next[0]
	t.next = t.next[1:]
	all := t.waiting[tenant]
	first := all[0]
	t.count--
	if len(all) == 1 {
		delete(t.waiting, tenant)
		return first
	}
	all[0] = mcreconcile.Request{} // the array stays
	t.waiting[tenant] = all[1:]
	t.next = append(t.next, tenant)
	return first
}
