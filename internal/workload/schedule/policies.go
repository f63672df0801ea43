package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// expected is how long what follows is assigned to a target that is about to get its first workload of
// the namespace.
const expected = 30 * time.Second

// An expectation is a target that is about to get a workload of a namespace.
type expectation struct {
	span
	until time.Time
}

// policiesFirst assigns the NetworkPolicies of a namespace to targets before they get pods of it. The
// engines see both in this order.
func (s *Scheduler) policiesFirst(ctx context.Context, of Subject, next workload.AssignmentSpec, p *scheduling.Placement) error {
	rules := s.consumers.Kind(profile.Policies().GroupResource())
	if rules == nil || len(of.Template) == 0 {
		return nil
	}
	keys := rules.In(of.ID.Key)
	if len(keys) == 0 {
		return nil
	}
	fresh := s.fresh(of.ID.Key, next)
	if len(fresh) == 0 {
		return nil
	}
	s.expect(of.ID.Key, fresh)
	for _, key := range keys {
		id := engine.ID{GroupResource: rules.GroupResource(), Key: key}
		w, a := rules.Objects.Get(key), s.consumers.Assignment(id)
		if w == nil || w.GetDeletionTimestamp() != nil || a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
			continue
		}
		if err := s.place(ctx, id, w, a, p); err != nil {
			return err
		}
	}
	return nil
}

// fresh returns the targets of a decision that have no workload of the namespace yet.
func (s *Scheduler) fresh(at kcp.Key, next workload.AssignmentSpec) (fresh []span) {
	have := s.spanned(at)
	for _, t := range next.Targets {
		if t.Phase != workload.Removing && !slices.ContainsFunc(have, func(of span) bool { return of.key == t.Key }) {
			fresh = append(fresh, span{t.Key, t.Location})
		}
	}
	return fresh
}

func (s *Scheduler) expect(at kcp.Key, fresh []span) {
	at.Name = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	until := time.Now().Add(expected)
	for _, of := range fresh {
		all := slices.DeleteFunc(s.expected[at], func(e expectation) bool { return e.key == of.key })
		s.expected[at] = append(all, expectation{of, until})
	}
}

// expects adds the targets that are about to get a workload of a namespace to those that have one. It
// reports whether there are any.
func (s *Scheduler) expects(at kcp.Key, spans []span) ([]span, bool) {
	at.Name = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	left := slices.DeleteFunc(s.expected[at], func(e expectation) bool {
		return now.After(e.until) || slices.ContainsFunc(spans, func(of span) bool { return of.key == e.key })
	})
	if s.expected[at] = left; len(left) == 0 {
		delete(s.expected, at)
		return spans, false
	}
	spans = slices.Clone(spans)
	for _, e := range left {
		spans = append(spans, e.span)
	}
	return spans, true
}
