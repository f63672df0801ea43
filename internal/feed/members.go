package feed

import (
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// Members maintains sets of clusters by group, such as the clusters that bind an export. It
// has a [Set] only for groups in use. A follower of the feed tells it the groups of each
// cluster. Methods may be called concurrently.
type Members[G comparable] struct {
	applied func() int64 // the applied revision of the feed

	mu   sync.Mutex
	in   map[cluster.Name][]membership[G]
	sets map[G]*sharedSet // of groups in use
	// counts has the number of members of each group.
	counts map[G]int
	last   int64 // revision of the last change
}

type membership[G comparable] struct {
	group G
	since int64 // revision
}

// A sharedSet is a set with the number of requests that use it.
type sharedSet struct {
	*Set
	uses int
}

// NewMembers returns members without clusters. applied returns the applied revision of the feed.
func NewMembers[G comparable](applied func() int64) *Members[G] {
	return &Members[G]{applied: applied, in: map[cluster.Name][]membership[G]{}, sets: map[G]*sharedSet{}, counts: map[G]int{}}
}

// Put sets the groups of a cluster, as of a revision.
func (m *Members[G]) Put(c cluster.Name, groups []G, rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, rev)
	before := m.in[c]
	var after []membership[G]
	for _, g := range groups {
		i := slices.IndexFunc(before, func(b membership[G]) bool { return b.group == g })
		if i >= 0 {
			after = append(after, before[i])
			continue
		}
		after = append(after, membership[G]{g, rev})
		m.counts[g]++
		if s := m.sets[g]; s != nil {
			s.Put(c, true, rev)
		}
	}
	for _, b := range before {
		if slices.Contains(groups, b.group) {
			continue
		}
		if m.counts[b.group]--; m.counts[b.group] == 0 {
			delete(m.counts, b.group)
		}
		if s := m.sets[b.group]; s != nil {
			s.Put(c, false, rev)
			m.drop(b.group)
		}
	}
	if m.in[c] = after; len(after) == 0 {
		delete(m.in, c)
	}
}

// Replace sets the groups of all clusters, as of a revision.
func (m *Members[G]) Replace(all map[cluster.Name][]G, rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, rev)
	m.in = make(map[cluster.Name][]membership[G], len(all))
	clear(m.counts)
	for c, groups := range all {
		for _, g := range groups {
			m.counts[g]++
			m.in[c] = append(m.in[c], membership[G]{g, m.last})
		}
	}
	for g, s := range m.sets {
		s.Replace(m.of(g), m.last)
	}
}

// of returns the clusters in a group. The caller holds mu.
func (m *Members[G]) of(g G) map[cluster.Name]int64 {
	all := map[cluster.Name]int64{}
	for c, in := range m.in {
		for _, one := range in {
			if one.group == g {
				all[c] = one.since
			}
		}
	}
	return all
}

// Has reports whether a cluster is in a group.
func (m *Members[G]) Has(c cluster.Name, g G) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.in[c], func(one membership[G]) bool { return one.group == g })
}

// Any reports whether a group has members.
func (m *Members[G]) Any(g G) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[g] > 0
}

// Use returns the set of a group's clusters. The caller must call done when the request has
// ended. The set stays as long as it has members or is in use.
func (m *Members[G]) Use(g G) (s *Set, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shared := m.sets[g]
	if shared == nil {
		shared = &sharedSet{Set: NewSet(0)}
		shared.Replace(m.of(g), max(m.applied(), m.last))
		m.sets[g] = shared
	}
	shared.uses++
	return shared.Set, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		shared.uses--
		m.drop(g)
	})
}

// drop forgets a set that nobody needs. The caller holds mu.
func (m *Members[G]) drop(g G) {
	if s := m.sets[g]; s != nil && s.uses == 0 && s.Len() == 0 {
		delete(m.sets, g)
	}
}
