package membership

import (
	"cmp"
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// recentLeaves is the maximum of leaves, of all groups, that are kept for sets to come.
const recentLeaves = 1000

// Groups maintain sets of clusters by group, such as the clusters that bind an export. There
// is a [Set] only for groups in use. A follower of the feed passes the groups of each
// cluster. Methods may be called concurrently.
type Groups[G comparable] struct {
	applied func() int64 // the applied revision of the feed

	mu   sync.Mutex
	in   map[cluster.Name][]membership[G]
	sets map[G]*sharedSet // of groups in use
	// counts has the number of members of each group.
	counts map[G]int
	last   int64 // revision of the last change
	// left has the latest leaves, in the order of revisions. The set of a new watch gets from
	// them what changed since the list before. It has all leaves after floor.
	left  []leave[G]
	floor int64
}

// A leave is a former membership of a cluster.
type leave[G comparable] struct {
	membership[G]
	cluster cluster.Name
	at      int64 // revision
}

// An In says that a cluster is in a group, with the objects that a selector of labels selects.
// An empty selector selects all. A cluster is in a group at most once.
type In[G comparable] struct {
	Group    G
	Selector string
}

type membership[G comparable] struct {
	In[G]
	since int64 // revision
}

// A sharedSet is a set with the number of requests that use it.
type sharedSet struct {
	*Set
	uses int
}

// NewGroups returns groups without clusters. applied returns the applied revision of the feed.
func NewGroups[G comparable](applied func() int64) *Groups[G] {
	return &Groups[G]{applied: applied, in: map[cluster.Name][]membership[G]{}, sets: map[G]*sharedSet{}, counts: map[G]int{}}
}

// Put sets the groups of a cluster, as of a revision.
func (m *Groups[G]) Put(c cluster.Name, groups []In[G], rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, rev)
	late := rev <= m.applied() // a value that could not be decrypted when it came
	before := m.in[c]
	var after []membership[G]
	for _, in := range groups {
		i := slices.IndexFunc(before, func(b membership[G]) bool { return b.Group == in.Group })
		if i >= 0 && before[i].In == in {
			after = append(after, before[i])
			continue
		}
		after = append(after, membership[G]{in, rev})
		if i < 0 {
			m.counts[in.Group]++
		}
		if i >= 0 {
			m.leave(leave[G]{before[i], c, rev})
		}
		if s := m.sets[in.Group]; s != nil {
			s.put(c, true, NewPart(in.Selector), rev)
			s.lost(late)
		}
	}
	for _, b := range before {
		if slices.ContainsFunc(groups, func(in In[G]) bool { return in.Group == b.Group }) {
			continue
		}
		m.leave(leave[G]{b, c, rev})
		if m.counts[b.Group]--; m.counts[b.Group] == 0 {
			delete(m.counts, b.Group)
		}
		if s := m.sets[b.Group]; s != nil {
			s.put(c, false, Part{}, rev)
			s.lost(late)
			m.drop(b.Group)
		}
	}
	if m.in[c] = after; len(after) == 0 {
		delete(m.in, c)
	}
	if late {
		m.left, m.floor = nil, max(m.floor, m.applied())
	}
}

// leave records that a cluster leaves a group. The caller holds mu.
func (m *Groups[G]) leave(l leave[G]) {
	m.left = append(m.left, l)
	if drop := len(m.left) - recentLeaves; drop > 0 {
		m.floor = max(m.floor, m.left[drop-1].at)
		m.left = slices.Clone(m.left[drop:])
	}
}

// Replace sets the groups of all clusters, as of a revision.
func (m *Groups[G]) Replace(all map[cluster.Name][]In[G], rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, rev)
	m.left, m.floor = nil, m.last
	m.in = make(map[cluster.Name][]membership[G], len(all))
	clear(m.counts)
	for c, groups := range all {
		for _, in := range groups {
			m.counts[in.Group]++
			m.in[c] = append(m.in[c], membership[G]{in, m.last})
		}
	}
	for g, s := range m.sets {
		s.replace(m.of(g), m.last)
	}
}

// of returns the clusters in a group. The caller holds mu.
func (m *Groups[G]) of(g G) map[cluster.Name]entrance {
	all := map[cluster.Name]entrance{}
	if m.counts[g] == 0 {
		return all // without looking at every cluster
	}
	for c, in := range m.in {
		for _, one := range in {
			if one.Group == g {
				all[c] = entrance{one.since, NewPart(one.Selector)}
			}
		}
	}
	return all
}

// changes returns how clusters entered and left a group after the floor. The caller holds mu.
func (m *Groups[G]) changes(g G, members map[cluster.Name]entrance) []Change {
	var all []Change
	enter := func(c cluster.Name, since int64, p Part) {
		if since > m.floor {
			all = append(all, Change{c, since, true, p})
		}
	}
	for c, e := range members {
		enter(c, e.since, e.part)
	}
	for _, l := range m.left {
		if l.Group != g || l.at <= m.floor {
			continue
		}
		p := NewPart(l.Selector)
		enter(l.cluster, l.since, p)
		all = append(all, Change{l.cluster, l.at, false, p})
	}
	rank := map[bool]int{false: 0, true: 1} // another part enters after the one before has left
	slices.SortFunc(all, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(rank[a.Enters], rank[b.Enters]))
	})
	return all
}

// Has reports whether a cluster is in a group.
func (m *Groups[G]) Has(c cluster.Name, g G) bool {
	_, is := m.Get(c, g)
	return is
}

// Get returns the selector of the objects with which a cluster is in a group, and whether it is.
func (m *Groups[G]) Get(c cluster.Name, g G) (selector string, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.in[c] {
		if one.Group == g {
			return one.Selector, true
		}
	}
	return "", false
}

// Any reports whether a group has members.
func (m *Groups[G]) Any(g G) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[g] > 0
}

// Use returns the set of a group's clusters. The caller must call done when the request has
// ended. The set stays as long as it has members or is in use.
func (m *Groups[G]) Use(g G) (s *Set, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shared := m.sets[g]
	if shared == nil {
		members := m.of(g)
		shared = &sharedSet{Set: newSet(members, m.changes(g, members), m.floor)}
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

// drop forgets an unused set. The caller holds mu.
func (m *Groups[G]) drop(g G) {
	if s := m.sets[g]; s != nil && s.uses == 0 && s.Len() == 0 {
		delete(m.sets, g)
	}
}
