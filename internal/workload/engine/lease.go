package engine

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A lease is the state of the agent's lease in its engine. The zero value is that of an engine
// in the server, which has none.
type lease struct {
	mu    sync.Mutex
	kept  bool        // the agent has a lease; guarded by mu
	valid bool        // guarded by mu
	sure  map[ID]bool // parts that the server has confirmed since the lease began; guarded by mu
}

// Lease tells the engine whether the lease of its agent is valid. While it is not, the engine leaves
// workloads with lease fencing alone, which the agent stops. When it is valid again, the engine writes them
// only after the server has confirmed that the target still has them.
func (e *Engine) Lease(valid bool) {
	e.lease.mu.Lock()
	same := e.lease.kept && e.lease.valid == valid
	e.lease.kept, e.lease.valid = true, valid
	if !same {
		e.lease.sure = map[ID]bool{}
	}
	e.lease.mu.Unlock()
	if same || !valid {
		return
	}
	e.mu.Lock()
	var held []*holding
	for _, h := range e.shelf {
		if h.profile.Quiesce != nil {
			held = append(held, h)
		}
	}
	e.mu.Unlock()
	for _, h := range held {
		for _, o := range h.kind.List("*") {
			for _, task := range e.tasksOf(h, o) {
				e.wakeLoop(task)
			}
		}
	}
}

// leased reports whether the agent stops the object when its lease has run out.
func (j *job) leased() bool {
	j.lease.mu.Lock()
	defer j.lease.mu.Unlock()
	return j.lease.kept && j.fences()
}

// fences reports whether the object has lease fencing.
func (j *job) fences() bool {
	return j.how != nil && j.how.Fencing == workload.LeaseFencing && j.profile.Quiesce != nil
}

// lapsed reports whether the agent stops the object now.
func (j *job) lapsed() bool {
	j.lease.mu.Lock()
	defer j.lease.mu.Unlock()
	return j.lease.kept && !j.lease.valid && j.fences()
}

// unsure reports whether the server has to confirm the part before it is written. The agent has
// renewed its lease before it asks: either it learns that the workload begins elsewhere, or the scheduler learns
// that the agent is back.
func (j *job) unsure() bool {
	j.lease.mu.Lock()
	defer j.lease.mu.Unlock()
	return j.lease.kept && j.fences() && !j.lease.sure[j.id]
}

// assured confirms a part with lease fencing.
func (j *job) assured(ctx context.Context) (bool, error) {
	if !j.unsure() {
		return true, nil
	}
	if ok, err := j.confirmed(ctx); err != nil || !ok {
		return false, err
	}
	j.lease.mu.Lock()
	defer j.lease.mu.Unlock()
	if !j.lease.valid {
		return false, kcp.After(soon)
	}
	j.lease.sure[j.id] = true
	return true, nil
}

// promise returns the longest grace period of the pods that the agent stops when its lease has run out. It returns
// nil if the agent does not stop them. A shorter grace period counts once no pod of an older template is left.
func (j *job) promise() *int64 {
	if !j.leased() {
		return nil
	}
	seconds := int64(j.profile.Grace(j.want) / time.Second)
	if last := j.last(); last != nil && last.StopsWithinSeconds != nil && !j.rolledOut(last) {
		seconds = max(seconds, *last.StopsWithinSeconds)
	}
	return &seconds
}

// rolledOut reports whether all pods have the present template.
func (j *job) rolledOut(last *workload.TargetStatusSpec) bool {
	if j.have == nil || last.Generation != j.want.GetGeneration() || !last.Observed {
		return false
	}
	status, _, err := unstructured.NestedMap(j.have.Object, "status")
	return err == nil && status["currentRevision"] == status["updateRevision"]
}

// weaken reports that the agent promises less than before, before it writes the object. So the scheduler has the last
// promise of a target that is cut off.
func (j *job) weaken(ctx context.Context, now *int64) error {
	last := j.last()
	if last == nil || last.StopsWithinSeconds == nil || now != nil && *now <= *last.StopsWithinSeconds {
		return nil
	}
	next := *last
	next.StopsWithinSeconds = now
	return j.say(ctx, next)
}
