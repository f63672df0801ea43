package feed

import (
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// TestMembers shows that requests for one group share a set, which is dropped with the last
// request and the last member, and that groups count their members.
func TestMembers(t *testing.T) {
	m := NewMembers[string](func() int64 { return 5 })
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
