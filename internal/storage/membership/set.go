package membership

import (
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// setHistory is the maximum of changes of a set that are kept for watches to come.
const setHistory = 1000

// A Set is a set of clusters that a follower maintains, each with a part of its objects.
// Clusters enter and leave it at revisions, and it knows its latest changes. So a reader can
// combine it with objects of the same revision, and continue from there. Methods may be called
// concurrently.
type Set struct {
	mu      sync.Mutex
	entered map[cluster.Name]entrance // the members
	changes []Change                  // the latest, in the order of revisions
	floor   int64                     // changes has all that are after it
	broken  int                       // how often changes has lost its order
	changed chan struct{}             // closed and replaced after a change
}

// An entrance is a member of a set, with the revision at which it entered.
type entrance struct {
	since int64
	part  Part
}

// A Change is a cluster that enters or leaves a [Set] with a part of its objects.
type Change struct {
	Cluster  cluster.Name
	Revision int64
	Enters   bool
	Part     Part
}

// NewSet returns an empty set as of a revision.
func NewSet(rev int64) *Set {
	return &Set{entered: map[cluster.Name]entrance{}, floor: rev, changed: make(chan struct{})}
}

// newSet returns a set with members, and with all changes after a revision.
func newSet(members map[cluster.Name]entrance, changes []Change, after int64) *Set {
	s := NewSet(after)
	s.entered, s.changes = members, changes
	s.trim()
	return s
}

// Put makes cluster c a member with all of its objects, or removes it, as of a revision.
func (s *Set) Put(c cluster.Name, member bool, rev int64) { s.put(c, member, Part{}, rev) }

// put makes a part of cluster c a member, or removes c, as of a revision. A cluster whose part
// changes leaves and enters. A revision before that of an earlier change, which the feed may
// deliver late, ends all cursors.
func (s *Set) put(c cluster.Name, member bool, p Part, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, was := s.entered[c]
	if was == member && before.part.Equal(p) || !was && !member {
		return
	}
	if was {
		delete(s.entered, c)
		s.change(Change{c, rev, false, before.part})
	}
	if member {
		s.entered[c] = entrance{rev, p}
		s.change(Change{c, rev, true, p})
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// change records a change. The caller holds mu.
func (s *Set) change(c Change) {
	if newest := s.newest(); c.Revision < newest {
		s.changes, s.floor = nil, newest
		s.broken++
	} else {
		s.changes = append(s.changes, c)
	}
	s.trim()
}

// trim drops the oldest changes beyond the limit. The caller holds mu.
func (s *Set) trim() {
	if drop := len(s.changes) - setHistory; drop > 0 {
		s.floor = s.changes[drop-1].Revision
		s.changes = slices.Clone(s.changes[s.after(s.floor):])
	}
}

// lost ends all cursors if a change was late: their subscriptions may have skipped changes of
// the cluster since then.
func (s *Set) lost(late bool) {
	if !late {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes, s.floor = nil, s.newest()
	s.broken++
	close(s.changed)
	s.changed = make(chan struct{})
}

// Newest returns the revision of the latest change, or as of which the set began.
func (s *Set) Newest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest()
}

// newest returns the revision of the latest change. The caller holds mu.
func (s *Set) newest() int64 {
	if n := len(s.changes); n > 0 {
		return s.changes[n-1].Revision
	}
	return s.floor
}

// Replace replaces all members, as of a revision, by clusters with the revisions at which they
// entered. It ends all cursors.
func (s *Set) Replace(members map[cluster.Name]int64, rev int64) {
	all := make(map[cluster.Name]entrance, len(members))
	for c, since := range members {
		all[c] = entrance{since: since}
	}
	s.replace(all, rev)
}

// replace replaces all members, as of a revision, and ends all cursors.
func (s *Set) replace(members map[cluster.Name]entrance, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entered, s.changes, s.floor = members, nil, max(rev, s.newest())
	s.broken++
	close(s.changed)
	s.changed = make(chan struct{})
}

// Len returns the number of members.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entered)
}

// At returns the part of cluster c that was a member at a revision, which the feed must have
// reached, and whether there was one. For revisions before the changes that the set knows, it
// returns what has been a member since.
func (s *Set) At(c cluster.Name, rev int64) (Part, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, change := range s.changes[s.after(rev):] {
		if change.Cluster == c {
			return change.Part, !change.Enters
		}
	}
	e, is := s.entered[c]
	return e.part, is && e.since <= rev
}

// Has reports whether cluster c was a member at a revision, see [Set.At].
func (s *Set) Has(c cluster.Name, rev int64) bool {
	_, is := s.At(c, rev)
	return is
}

// Members returns the members at a revision, which the feed must have reached, sorted by name.
// It reports false if the set does not know them any more.
func (s *Set) Members(rev int64) ([]cluster.Name, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev < s.floor {
		return nil, false
	}
	all := make(map[cluster.Name]bool, len(s.entered))
	for c := range s.entered {
		all[c] = true
	}
	for _, change := range slices.Backward(s.changes[s.after(rev):]) {
		all[change.Cluster] = !change.Enters
	}
	names := make([]cluster.Name, 0, len(all))
	for c, is := range all {
		if is {
			names = append(names, c)
		}
	}
	slices.Sort(names)
	return names, true
}

// after returns the index of the first change after a revision. The caller holds mu.
func (s *Set) after(rev int64) int {
	i := len(s.changes)
	for i > 0 && s.changes[i-1].Revision > rev {
		i--
	}
	return i
}

// Changed returns a channel that is closed at the next change.
func (s *Set) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// A Cursor reads the changes of a [Set] in their order. It is for one goroutine.
type Cursor struct {
	set    *Set
	at     int64
	broken int
}

// After returns a cursor for the changes after a revision.
func (s *Set) After(rev int64) *Cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Cursor{s, rev, s.broken}
}

// To returns the changes up to a revision that the cursor has not returned yet. It reports
// false if the set does not know all of them: the reader must list again.
func (c *Cursor) To(rev int64) ([]Change, bool) {
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.at < s.floor || c.broken != s.broken {
		return nil, false
	}
	if rev <= c.at {
		return nil, true
	}
	found := slices.Clone(s.changes[s.after(c.at):s.after(rev)])
	c.at = rev
	return found, true
}
