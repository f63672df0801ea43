package view

import (
	"slices"
	"sync"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/tenancy"
)

// members is a follower of the change feed that knows the members of the views: the clusters
// that wait for each initializer and terminator. It reads the tree, which must be an earlier
// follower. It holds nothing for other clusters.
type members struct {
	applied func() int64 // the applied revision of the feed
	root    func(cluster.Name) (tenancy.Root, bool)

	mu       sync.Mutex
	waiting  map[cluster.Name][]membership
	building map[cluster.Name][]membership // during a rebuild, else nil
	sets     map[group]*sharedSet          // of views in use
	last     int64                         // revision of the last change
}

// A group is the clusters in a phase that wait for one initializer or terminator.
type group struct {
	phase core.Phase
	id    string
}

type membership struct {
	group
	since int64 // revision
}

// A sharedSet is a set with the number of requests that use it.
type sharedSet struct {
	*feed.Set
	uses int
}

func newMembers(f *feed.Feed, t *tenancy.Tree) *members {
	m := &members{applied: f.Revision, root: t.Cluster, waiting: map[cluster.Name][]membership{}, sets: map[group]*sharedSet{}}
	f.Follow(m)
	return m
}

// groupsOf returns the groups that a cluster is in.
func (m *members) groupsOf(c cluster.Name) []group {
	root, ok := m.root(c)
	if !ok {
		return nil
	}
	var ids []string
	switch root.Phase {
	case core.PhaseInitializing:
		ids = texts(root.Initializers)
	case core.PhaseTerminating:
		ids = texts(root.Terminators)
	}
	all := make([]group, len(ids))
	for i, id := range ids {
		all[i] = group{root.Phase, id}
	}
	return all
}

// Reset implements [feed.Follower].
func (m *members) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.building = map[cluster.Name][]membership{}
}

// Apply implements [feed.Follower].
func (m *members) Apply(e feed.Event) {
	if e.Key.Resource != tenancy.LogicalClusters() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := e.Key.Cluster
	m.last = max(m.last, e.Revision)
	if m.building != nil {
		m.building[c] = nil // the tree has no rows before its own rebuild ends
		return
	}
	m.put(c, e.Revision)
}

// put updates the groups of a cluster as of a revision. The caller holds mu.
func (m *members) put(c cluster.Name, rev int64) {
	before := m.waiting[c]
	var after []membership
	for _, g := range m.groupsOf(c) {
		i := slices.IndexFunc(before, func(b membership) bool { return b.group == g })
		if i >= 0 {
			after = append(after, before[i])
			continue
		}
		after = append(after, membership{g, rev})
		if s := m.sets[g]; s != nil {
			s.Put(c, true, rev)
		}
	}
	for _, b := range before {
		if s := m.sets[b.group]; s != nil && !slices.ContainsFunc(after, func(a membership) bool { return a.group == b.group }) {
			s.Put(c, false, rev)
			m.drop(b.group)
		}
	}
	if m.waiting[c] = after; len(after) == 0 {
		delete(m.waiting, c)
	}
}

// Done implements [feed.Follower].
func (m *members) Done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.waiting)
	for c := range m.building {
		for _, g := range m.groupsOf(c) {
			m.waiting[c] = append(m.waiting[c], membership{g, m.last})
		}
	}
	m.building = nil
	for g, s := range m.sets {
		s.Replace(m.of(g), m.last)
	}
}

// of returns the members of a group. The caller holds mu.
func (m *members) of(g group) map[cluster.Name]int64 {
	all := map[cluster.Name]int64{}
	for c, in := range m.waiting {
		for _, one := range in {
			if one.group == g {
				all[c] = one.since
			}
		}
	}
	return all
}

// use returns the set of a group's clusters. The caller must call done when the request has
// ended. The set stays as long as it has members or is in use.
func (m *members) use(g group) (s *feed.Set, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shared := m.sets[g]
	if shared == nil {
		shared = &sharedSet{Set: feed.NewSet(0)}
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
func (m *members) drop(g group) {
	if s := m.sets[g]; s != nil && s.uses == 0 && s.Len() == 0 {
		delete(m.sets, g)
	}
}
