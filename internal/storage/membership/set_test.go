package membership

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// A set has at each revision the members that a replay of all changes up to the revision gives.
func TestSetAtRevisions(t *testing.T) {
	s := NewSet(10)
	members := map[cluster.Name]bool{}
	var after []map[cluster.Name]bool // by revision - 10
	clusters := []cluster.Name{"a", "b", "c"}
	copied := func() map[cluster.Name]bool {
		m := map[cluster.Name]bool{}
		for c, is := range members {
			m[c] = is
		}
		return m
	}
	after = append(after, copied())
	for rev := int64(11); rev < 200; rev++ {
		if c := clusters[rand.IntN(len(clusters))]; rand.IntN(2) == 0 {
			is := rand.IntN(2) == 0
			s.Put(c, is, rev)
			members[c] = is
		}
		after = append(after, copied())
	}
	for i, want := range after {
		for _, c := range clusters {
			if got := s.Has(c, 10+int64(i)); got != want[c] {
				t.Errorf("%s at revision %d: member %t, want %t", c, 10+i, got, want[c])
			}
		}
	}
	// A reader that begins anywhere, and reads in steps of any length, ends with the members.
	for range 20 {
		at := 10 + rand.Int64N(180)
		own := map[cluster.Name]bool{}
		for c := range members {
			own[c] = s.Has(c, at)
		}
		for cursor := s.After(at); at < 200; {
			at = min(200, at+rand.Int64N(20))
			changes, ok := cursor.To(at)
			if !ok {
				t.Fatal("changes are not known")
			}
			for _, c := range changes {
				own[c.Cluster] = c.Enters
			}
		}
		for c, is := range members {
			if own[c] != is {
				t.Errorf("%s: member %t, want %t", c, own[c], is)
			}
		}
	}
}

// A cursor ends when the set does not know what has changed since: after too many changes, after
// a rebuild, and after a change that the feed delivered late.
func TestSetCursorsEnd(t *testing.T) {
	s := NewSet(5)
	if _, ok := s.After(4).To(9); ok {
		t.Error("a new set knows changes from before it was made")
	}
	s.Put("a", true, 7)
	early, late := s.After(6), s.After(7)
	s.Put("b", true, 6) // late
	for name, c := range map[string]*Cursor{"before": early, "after": late} {
		if _, ok := c.To(9); ok {
			t.Errorf("a cursor %s a change continues after a late one", name)
		}
	}
	if !s.Has("b", 9) || s.Has("a", 6) || s.Len() != 2 {
		t.Error("wrong members after a late change")
	}
	kept := s.After(7)
	if changes, ok := kept.To(8); !ok || len(changes) != 0 {
		t.Errorf("a cursor that began after it: %v, %t", changes, ok)
	}
	changed := s.Changed()
	s.Replace(map[cluster.Name]int64{"c": 3}, 20)
	<-changed
	if _, ok := kept.To(21); ok || !s.Has("c", 20) || s.Has("a", 20) {
		t.Error("a cursor continues after a rebuild, or members are wrong")
	}
	kept = s.After(20)
	for i := range int64(setHistory + 1) {
		s.Put("d", i%2 == 0, 21+i)
	}
	if _, ok := kept.To(5000); ok {
		t.Error("a cursor continues though changes are forgotten")
	}
	changes, ok := s.After(21).To(5000)
	if !ok || len(changes) != setHistory || !slices.IsSortedFunc(changes, func(a, b Change) int { return int(a.Revision - b.Revision) }) {
		t.Errorf("%d changes, %t", len(changes), ok)
	}
}
