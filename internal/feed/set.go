package feed

import (
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// setHistory is the maximum of changes of a set that are kept for watches to come.
const setHistory = 1000

// A Set is a set of clusters that a follower maintains. Clusters enter and leave it at
// revisions, and it knows its latest changes. So a reader can combine it with objects of
// the same revision, and continue from there. Methods may be called concurrently.
type Set struct {
	mu      sync.Mutex
	entered map[cluster.Name]int64 // the members, with the revision at which they entered
	changes []SetChange            // the latest, in the order of revisions
	floor   int64                  // changes has all that are after it
	broken  int                    // how often changes has lost its order
	changed chan struct{}          // closed and replaced after a change
}

// A SetChange is a cluster that enters or leaves a [Set].
type SetChange struct {
	Cluster  cluster.Name
	Revision int64
	Enters   bool
}

// NewSet returns an empty set as of a revision.
func NewSet(rev int64) *Set {
	return &Set{entered: map[cluster.Name]int64{}, floor: rev, changed: make(chan struct{})}
}

// Put makes cluster c a member, or removes it, as of a revision. A revision before that of
// an earlier change, which the feed may deliver late, ends all cursors.
func (s *Set) Put(c cluster.Name, member bool, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.entered[c]; is == member {
		return
	}
	if member {
		s.entered[c] = rev
	} else {
		delete(s.entered, c)
	}
	if newest := s.newest(); rev < newest {
		s.changes, s.floor = nil, newest
		s.broken++
	} else {
		s.changes = append(s.changes, SetChange{c, rev, member})
	}
	if drop := len(s.changes) - setHistory; drop > 0 {
		s.floor = s.changes[drop-1].Revision
		s.changes = slices.Clone(s.changes[drop:])
	}
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

// Replace replaces all members, as of a revision, and ends all cursors.
func (s *Set) Replace(members map[cluster.Name]int64, rev int64) {
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

// Has reports whether cluster c was a member at a revision, which the feed must have
// reached. For revisions before the changes that the set knows, it reports whether c has
// been a member since.
func (s *Set) Has(c cluster.Name, at int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, change := range s.changes[s.after(at):] {
		if change.Cluster == c {
			return !change.Enters
		}
	}
	entered, is := s.entered[c]
	return is && entered <= at
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

// A SetCursor reads the changes of a [Set] in their order. It is for one goroutine.
type SetCursor struct {
	set    *Set
	at     int64
	broken int
}

// After returns a cursor for the changes after a revision.
func (s *Set) After(rev int64) *SetCursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &SetCursor{s, rev, s.broken}
}

// To returns the changes up to a revision that the cursor has not returned yet. It reports
// false if the set does not know all of them: the reader must list again.
func (c *SetCursor) To(rev int64) ([]SetChange, bool) {
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
