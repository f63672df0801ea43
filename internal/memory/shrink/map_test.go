package shrink

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMapGivesMemoryBack(t *testing.T) {
	odd := func(_, v int) bool { return v%2 == 1 }
	for name, empty := range map[string]func(*Map[int, int]){
		"one by one": func(m *Map[int, int]) {
			for i := range 9_990 {
				if !m.Drop(i) || m.Drop(i) {
					t.Fatalf("entry %d is not dropped once", i)
				}
			}
			m.DropFunc(odd)
		},
		"many at once": func(m *Map[int, int]) {
			m.DropFunc(func(k, v int) bool { return k < 9_990 || odd(k, v) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m Map[int, int]
			for i := range 10_000 {
				m.Put(i, i)
			}
			empty(&m)
			if m.peak > Small {
				t.Errorf("room for %d entries is kept for %d", m.peak, m.Len())
			}
			want := map[int]int{9_990: 9_990, 9_992: 9_992, 9_994: 9_994, 9_996: 9_996, 9_998: 9_998}
			if d := cmp.Diff(want, maps.Collect(m.All())); d != "" || m.Len() != len(want) {
				t.Errorf("%d entries are left (-want +got):\n%s", m.Len(), d)
			}
			if v, ok := m.Get(9_992); v != 9_992 || !ok {
				t.Errorf("got %d, %v", v, ok)
			}
		})
	}
}

func TestZeroMap(t *testing.T) {
	var m Map[string, int]
	if _, ok := m.Get("x"); ok || m.Drop("x") || m.Len() != 0 {
		t.Error("an empty map has an entry")
	}
	for k := range m.All() {
		t.Errorf("an empty map has %q", k)
	}
	m.DropFunc(func(string, int) bool { return true })
}
