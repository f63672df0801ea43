package view

import (
	"sync"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// members is a follower of the change feed that knows the members of the views: the clusters
// that wait for each initializer and terminator. It reads the tree, which must be an earlier
// follower. It holds nothing for other clusters.
type members struct {
	*membership.Groups[group]
	root func(cluster.Name) (tree.Root, bool)

	mu       sync.Mutex
	building map[cluster.Name]struct{} // during a rebuild, else nil
	last     int64                     // revision of the last change
}

// A group is the clusters in a phase that wait for one initializer or terminator.
type group struct {
	phase core.Phase
	id    string
}

func newMembers(f *feed.Feed, t *tree.Tree) *members {
	m := &members{Groups: membership.NewGroups[group](f.Revision), root: t.Cluster}
	f.Follow(m)
	return m
}

// groupsOf returns the groups that a cluster is in.
func (m *members) groupsOf(c cluster.Name) []membership.In[group] {
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
	all := make([]membership.In[group], len(ids))
	for i, id := range ids {
		all[i].Group = group{root.Phase, id}
	}
	return all
}

// Reset implements [feed.Follower].
func (m *members) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.building = map[cluster.Name]struct{}{}
}

// Apply implements [feed.Follower].
func (m *members) Apply(e feed.Event) {
	if e.Key.Resource != tree.LogicalClusters() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, e.Revision)
	if m.building != nil {
		m.building[e.Key.Cluster] = struct{}{} // the tree has no rows before its own rebuild ends
		return
	}
	m.Put(e.Key.Cluster, m.groupsOf(e.Key.Cluster), e.Revision)
}

// Done implements [feed.Follower].
func (m *members) Done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[cluster.Name][]membership.In[group]{}
	for c := range m.building {
		if groups := m.groupsOf(c); len(groups) > 0 {
			all[c] = groups
		}
	}
	m.building = nil
	m.Replace(all, m.last)
}

// texts returns all as strings.
func texts[T ~string](all []T) []string {
	out := make([]string, len(all))
	for i, t := range all {
		out[i] = string(t)
	}
	return out
}
