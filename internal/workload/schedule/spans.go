package schedule

import (
	"cmp"
	"slices"
	"sync"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A span is a target that has a workload of a namespace, or is about to remove one: what follows leaves last.
type span struct{ key, location string }

// spans are those of all namespaces. They follow the cache of Assignments, so that the work for a change does not grow
// with the number of workloads in its namespace.
type spans struct {
	cache *consumers.Cache

	mu       sync.Mutex
	complete bool                 // changes are followed; guarded by mu
	kinds    []*consumers.Kind    // whose classes count; guarded by mu
	of       map[kcp.Key][]span   // by Assignment; guarded by mu
	in       map[kcp.Key]*spanned // by namespace; guarded by mu
}

// A spanned namespace has workloads.
type spanned struct {
	uses map[span]int // how many workloads have it
	all  []span       // sorted by key, one of each target; replaced, not changed
}

// spansOf returns the spans of an Assignment. An object of a kind without a profile may be a workload.
func spansOf(c *consumers.Cache, a *workload.Assignment) (all []span) {
	if a == nil {
		return nil
	}
	k := c.Kind(engine.IDFor(a, a.Spec.Workload).GroupResource)
	if k != nil && (k.Class == workload.Follows || k.Class == profile.Volume) {
		return nil
	}
	for _, t := range a.Spec.Targets {
		all = append(all, span{t.Key, t.Location})
	}
	return all
}

// distinct sorts spans, and leaves one of each target.
func distinct(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.location, b.location)) })
	return slices.CompactFunc(all, func(a, b span) bool { return a.key == b.key })
}

// list returns the spans of a namespace from the cache, not from those that are known.
func (s *spans) list(at kcp.Key) (all []span) {
	for _, a := range s.cache.AssignedIn(at) {
		all = append(all, spansOf(s.cache, a)...)
	}
	return distinct(all)
}

// get returns the spans of a namespace, and the namespaces whose spans turn out to be other ones.
func (s *spans) get(at kcp.Key) (all []span, changed []kcp.Key) {
	at.Name = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.complete {
		return s.list(at), nil
	}
	changed = s.classify()
	if n := s.in[at]; n != nil {
		all = n.all
	}
	return all, changed
}

// follow begins to follow changes, which the caller passes on to change from now on, and has passed on for all
// Assignments that exist.
func (s *spans) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = true
}

// change brings the spans up to date with an Assignment, and returns the namespaces whose spans change.
func (s *spans) change(key kcp.Key) (changed []kcp.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.classify()
	if at, did := s.count(key, spansOf(s.cache, s.cache.Assignments.Get(key))); did && !slices.Contains(changed, at) {
		changed = append(changed, at)
	}
	return changed
}

// classify counts all Assignments anew if the kinds have changed: another class may count, or none. The caller holds mu.
func (s *spans) classify() (changed []kcp.Key) {
	kinds := s.cache.Kinds()
	if len(kinds) == len(s.kinds) && (len(kinds) == 0 || &kinds[0] == &s.kinds[0]) {
		return nil // they are replaced, not changed
	}
	s.kinds = kinds
	for _, a := range s.cache.Assignments.List("*") {
		if at, did := s.count(kcp.KeyOf(a), spansOf(s.cache, a)); did && !slices.Contains(changed, at) {
			changed = append(changed, at)
		}
	}
	return changed
}

// count brings the spans of a namespace up to date with those that an Assignment has now. It reports whether that changes
// them. The caller holds mu since it has read the Assignment, so that its newest state is the last one.
func (s *spans) count(key kcp.Key, now []span) (at kcp.Key, changed bool) {
	at = kcp.Key{Cluster: key.Cluster, Namespace: key.Namespace}
	before := s.of[key]
	if slices.Equal(before, now) {
		return at, false
	}
	n := s.in[at]
	if n == nil {
		n = &spanned{uses: map[span]int{}}
		s.in[at] = n
	}
	differs := false
	for _, of := range now {
		n.uses[of]++
		differs = differs || n.uses[of] == 1
	}
	for _, of := range before {
		if n.uses[of]--; n.uses[of] == 0 {
			delete(n.uses, of)
			differs = true
		}
	}
	if s.of[key] = now; len(now) == 0 {
		delete(s.of, key)
	}
	if len(n.uses) == 0 {
		delete(s.in, at)
	}
	if !differs {
		return at, false
	}
	all := make([]span, 0, len(n.uses))
	for of := range n.uses {
		all = append(all, of)
	}
	all = distinct(all)
	changed = !slices.Equal(n.all, all)
	n.all = all
	return at, changed
}

// newSpans returns the spans of a cache, as far as changes are not followed yet.
func newSpans(cache *consumers.Cache) *spans {
	return &spans{cache: cache, of: map[kcp.Key][]span{}, in: map[kcp.Key]*spanned{}}
}
