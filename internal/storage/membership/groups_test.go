package membership

import (
	"fmt"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// TestGroups shows that requests for one group share a set, which is dropped with the last
// request and the last member, and that groups count their members.
func TestGroups(t *testing.T) {
	m := NewGroups[string](func() int64 { return 5 })
	m.Put("early", []In[string]{{Group: "a"}, {Group: "b"}}, 3)
	a, done := m.Use("a")
	if again, againDone := m.Use("a"); again != a {
		t.Error("two requests for one group have two sets")
	} else {
		againDone()
	}
	m.Put("early", []In[string]{{Group: "b"}}, 6)
	m.Put("late", []In[string]{{Group: "a"}}, 7)
	if !a.Has("early", 5) || a.Has("early", 6) || !a.Has("late", 7) || !m.Any("a") || !m.Has("late", "a") || m.Has("early", "a") {
		t.Error("wrong members")
	}
	m.Replace(map[cluster.Name][]In[string]{"late": {{Group: "b"}}}, 8)
	if m.Any("a") || !m.Any("b") || a.Has("late", 9) {
		t.Error("wrong members after a rebuild")
	}
	done()
	done()
	m.Put("late", nil, 9)
	if len(m.sets)+len(m.in)+len(m.counts) != 0 {
		t.Errorf("%d sets, %d clusters and %d counts are kept", len(m.sets), len(m.in), len(m.counts))
	}
}

// BenchmarkAnEmptyGroup measures a request for a group without members.
func BenchmarkAnEmptyGroup(b *testing.B) {
	m := NewGroups[string](func() int64 { return 0 })
	for i := range 100_000 {
		m.Put(cluster.Name(fmt.Sprint("c", i)), []In[string]{{Group: "a"}}, 1)
	}
	for b.Loop() {
		_, done := m.Use("b")
		done()
	}
}

// TestASetKnowsWhatCameBefore shows that a set which a watch makes has the changes since the list
// before it, also after clusters have left other groups.
func TestASetKnowsWhatCameBefore(t *testing.T) {
	applied := int64(0)
	m := NewGroups[string](func() int64 { return applied })
	put := func(c cluster.Name, rev int64, in ...In[string]) {
		m.Put(c, in, rev)
		applied = max(applied, rev)
	}
	changes := func(g string, after int64) string {
		s, done := m.Use(g)
		defer done()
		all, ok := s.After(after).To(applied)
		if !ok {
			return "unknown"
		}
		text := ""
		for _, c := range all {
			text += fmt.Sprintf(" %s %d %t %s", c.Cluster, c.Revision, c.Enters, c.Part)
		}
		return text
	}
	put("stays", 2, In[string]{Group: "a"})
	put("leaves", 3, In[string]{Group: "a"})
	put("other", 4, In[string]{Group: "b"})
	put("leaves", 5)
	put("narrows", 6, In[string]{Group: "a"})
	put("narrows", 7, In[string]{Group: "a", Selector: "x=y"})
	put("other", 8)
	for after, want := range map[int64]string{
		1: " stays 2 true  leaves 3 true  leaves 5 false  narrows 6 true  narrows 7 false  narrows 7 true x=y",
		4: " leaves 5 false  narrows 6 true  narrows 7 false  narrows 7 true x=y",
		7: "",
	} {
		m.sets = map[string]*sharedSet{}
		if got := changes("a", after); got != want {
			t.Errorf("changes after %d: %q, want %q", after, got, want)
		}
	}
	s, done := m.Use("a")
	if !s.Has("leaves", 4) || s.Has("leaves", 5) || s.Has("narrows", 5) {
		t.Error("wrong members at former revisions")
	}
	done()

	// More leaves than are kept, a change that is late, and a rebuild end that knowledge.
	m.sets = map[string]*sharedSet{}
	for i := range int64(recentLeaves) {
		put("often", 10+2*i, In[string]{Group: "b"})
		put("often", 11+2*i)
	}
	if got := changes("a", 4); got != "unknown" {
		t.Errorf("changes after too many: %q", got)
	}
	m.sets = map[string]*sharedSet{}
	if got := changes("a", 8); got != "" {
		t.Errorf("changes of a group without any: %q", got)
	}
	before := applied - 1
	m.sets = map[string]*sharedSet{}
	put("late", before, In[string]{Group: "a"})
	if got := changes("a", before); got != "unknown" {
		t.Errorf("changes after a late one: %q", got)
	}
	m.sets = map[string]*sharedSet{}
	put("new", applied+1, In[string]{Group: "a"})
	m.Replace(map[cluster.Name][]In[string]{"new": {{Group: "a"}}}, applied+1)
	if got := changes("a", applied); got != "unknown" {
		t.Errorf("changes over a rebuild: %q", got)
	}
}
