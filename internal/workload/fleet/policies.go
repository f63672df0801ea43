package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/unforked/kcp"
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
func (f *fleet) policiesFirst(ctx context.Context, of subject, next workload.AssignmentSpec) error {
	policies := f.kinds.get(profile.Policies().GroupResource())
	if policies == nil || len(of.Template) == 0 {
		return nil
	}
	keys := policies.objects.By(byNamespace, namespaceKey(of.id.Key))
	fresh := f.fresh(of.id.Key, next)
	if len(keys) == 0 || len(fresh) == 0 {
		return nil
	}
	f.expect(of.id.Key, fresh)
	for _, key := range keys {
		id := engine.ID{GroupResource: policies.GroupResource(), Key: key}
		w, a := policies.objects.Get(key), f.assignmentOf(id)
		if w == nil || w.GetDeletionTimestamp() != nil || a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
			continue
		}
		if err := f.place(ctx, id, w, a); err != nil {
			return err
		}
	}
	return nil
}

// fresh returns the targets of a decision that have no workload of the namespace yet.
func (f *fleet) fresh(at kcp.Key, next workload.AssignmentSpec) (fresh []span) {
	have := f.spansOf(at)
	for _, t := range next.Targets {
		if t.Phase != workload.Removing && !slices.ContainsFunc(have, func(s span) bool { return s.key == t.Key }) {
			fresh = append(fresh, span{t.Key, t.Location})
		}
	}
	return fresh
}

func (f *fleet) expect(at kcp.Key, fresh []span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	until := time.Now().Add(expected)
	for _, s := range fresh {
		all := slices.DeleteFunc(f.expected[namespaceKey(at)], func(e expectation) bool { return e.key == s.key })
		f.expected[namespaceKey(at)] = append(all, expectation{s, until})
	}
}

// expects adds the targets that are about to get a workload of a namespace to those that have one. It
// reports whether there are any.
func (f *fleet) expects(at kcp.Key, spans []span) ([]span, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, now := namespaceKey(at), time.Now()
	left := slices.DeleteFunc(f.expected[name], func(e expectation) bool {
		return now.After(e.until) || slices.ContainsFunc(spans, func(s span) bool { return s.key == e.key })
	})
	if f.expected[name] = left; len(left) == 0 {
		delete(f.expected, name)
		return spans, false
	}
	spans = slices.Clone(spans)
	for _, e := range left {
		spans = append(spans, e.span)
	}
	return spans, true
}
