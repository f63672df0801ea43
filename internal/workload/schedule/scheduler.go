// Package schedule decides for each object of the consumers of a compute workspace which targets have it, and
// writes the decisions as Assignments. It hides what a decision depends on, and how many workloads leave targets at
// a time. It also hides what follows workloads, where data are, and how a deleted object leaves its targets.
package schedule

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// Options are what a [Scheduler] decides from.
type Options struct {
	Consumers *consumers.Cache
	Inventory *inventory.Inventory
	// Inputs are further caches that have to be complete before the first decision.
	Inputs []kcp.Source
	// Evictions is how many workloads begin to leave the targets of a failure domain that do not answer.
	Evictions place.Rate
	// Stop is how much longer than the grace period of its pods an agent may take to stop a workload.
	Stop time.Duration
	// Lapsed reports whether the server confirms that the Lease of the agent of a target has run out. Without it,
	// the times of the inventory count.
	Lapsed func(ctx context.Context, target string) (bool, error)
	// Say writes the status of an object from its Assignment and the reports about it.
	Say func(ctx context.Context, task kcp.Key) error
}

// A Scheduler decides which targets have the objects of consumers. It decides nothing before its loops run,
// see [Scheduler.Loops]. Its methods may be called concurrently.
type Scheduler struct {
	options   Options
	consumers *consumers.Cache
	belt      belt
	refused   refusals
	spans     *spans
	relabels  chan struct{} // closed when changes of namespaces are noticed

	mu       sync.Mutex
	wake     func(kcp.Key)             // nil before the loops run; guarded by mu
	ending   bool                      // the last SyncTarget or the export goes; guarded by mu
	lost     bool                      // the export goes; guarded by mu
	retiring bool                      // the compute workspace or its export goes; guarded by mu
	expected map[kcp.Key][]expectation // by namespace; guarded by mu
}

// New returns a Scheduler whose loops do not run.
func New(o Options) *Scheduler {
	return &Scheduler{options: o, consumers: o.Consumers, spans: newSpans(o.Consumers), relabels: make(chan struct{}), expected: map[kcp.Key][]expectation{}}
}

// soon is the time after which a loop looks again at something that no source announces.
const soon = time.Second

// Loops returns the loops that decide.
func (s *Scheduler) Loops() []kcp.Loop {
	return []kcp.Loop{s.decideLoop(), s.spanLoop(), s.relabelLoop()}
}

// decideLoop decides for each object which targets have it.
func (s *Scheduler) decideLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-schedule", Workers: 8, Slow: consumers.SlowWrites, Do: s.decide, On: append([]kcp.Source{
		{Subscribe: func(wake func(kcp.Key)) func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.wake = wake
			return nil
		}},
		{Ready: s.relabels},
		s.consumers.Wakes(s.changed),
		s.consumers.Assignments.Wakes(s.concerned),
		s.consumers.Reports.Wakes(func(r *workload.TargetStatus) []kcp.Key { return []kcp.Key{engine.IDFor(r, r.Spec.Workload).Task()} }),
		s.consumers.Placements.Wakes(func(p *scheduling.Placement) (keys []kcp.Key) {
			s.consumers.Each(kcp.KeyOf(p).Cluster, func(task kcp.Key) { keys = append(keys, task) })
			return keys
		}),
	}, s.options.Inputs...)}
}

// relabelLoop makes the scheduler decide anew about the objects of a namespace whose labels change, where these select
// the Placement.
func (s *Scheduler) relabelLoop() kcp.Loop {
	changes := s.consumers.Relabelled()
	return kcp.Loop{Name: "workload-namespaces", Do: s.relabel, On: []kcp.Source{
		{Ready: s.consumers.Settled()},
		{Ready: changes.Ready, Subscribe: func(wake func(kcp.Key)) func() {
			defer close(s.relabels) // no decision is made from labels whose changes are not noticed
			return changes.Subscribe(wake)
		}},
	}}
}

func (s *Scheduler) relabel(ctx context.Context, key kcp.Key) error {
	key = kcp.Key{Cluster: key.Cluster, Namespace: key.Name}
	changed, err := s.consumers.Relabel(ctx, key)
	s.mu.Lock()
	wake := s.wake
	s.mu.Unlock()
	if changed && wake != nil {
		s.consumers.EachIn(key, wake)
	}
	return err
}

// Turn makes the scheduler decide anew, because the targets have changed for it.
func (s *Scheduler) Turn() {
	s.mu.Lock()
	wake := s.wake
	s.mu.Unlock()
	if wake == nil {
		return
	}
	s.consumers.Each("*", wake)
	targets := s.orphaning()
	for _, r := range s.consumers.Reports.List("*") { // workloads that do not exist any more have no key of a kind
		if _, exists := targets[r.Spec.Key]; !exists {
			wake(engine.IDFor(r, r.Spec.Workload).Task())
		}
	}
}

// changed returns the tasks of objects whose place depends on an object that changed: itself and the volumes
// that it uses.
func (s *Scheduler) changed(k *consumers.Kind, w *unstructured.Unstructured) []kcp.Key {
	keys := []kcp.Key{engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(w)}.Task()}
	for _, ref := range k.RefersTo(w) {
		if of := s.consumers.Kind(ref.GroupResource); of != nil && of.Class == profile.Volume {
			keys = append(keys, ref.Task())
		}
	}
	return keys
}

// concerned returns the tasks of objects whose place depends on that of a workload: itself, the
// volumes that it uses, and the users of a volume.
func (s *Scheduler) concerned(a *workload.Assignment) []kcp.Key {
	id := engine.IDFor(a, a.Spec.Workload)
	keys := []kcp.Key{id.Task()}
	k := s.consumers.Kind(id.GroupResource)
	if k == nil {
		return keys
	}
	if k.Class == profile.Volume {
		for _, user := range s.consumers.Users(id) {
			keys = append(keys, user.Task())
		}
		return keys
	}
	if w := k.Objects.Get(id.Key); w != nil {
		for _, ref := range k.RefersTo(w) {
			if ref.GroupResource == profile.Volumes().GroupResource() {
				keys = append(keys, ref.Task())
			}
		}
	}
	return keys
}
