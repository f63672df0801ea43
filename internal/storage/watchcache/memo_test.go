package watchcache

import (
	"fmt"
	"testing"
)

// A memo returns recently used results, separately for each schema. New results replace old
// ones, and large ones are not kept.
func TestMemo(t *testing.T) {
	m := newMemo[string](64_000)
	one, other := &custom{}, &custom{}
	find := func(by *custom, name string) string {
		v, _ := m.find(m.key(by, "", []byte(name)), []byte(name))
		return v
	}
	put := func(by *custom, name, value string, bytes int) {
		m.put(m.key(by, "", []byte(name)), []byte(name), value, bytes)
	}
	put(one, "a", "first", 1000)
	if got := find(one, "a"); got != "first" {
		t.Errorf("got %q", got)
	}
	if got := find(other, "a"); got != "" {
		t.Errorf("another schema reads %q", got)
	}
	if got, ok := m.find(m.key(one, "2", []byte("a")), []byte("a")); ok {
		t.Errorf("another revision is %q", got)
	}
	if got, ok := m.find(m.key(one, "", []byte("a")), []byte("b")); ok {
		t.Errorf("what has the same hash is %q", got)
	}
	if put(one, "a", "second", 900); find(one, "a") != "second" || m.bytes != 900 {
		t.Errorf("got %q, and %d bytes are kept", find(one, "a"), m.bytes)
	}
	for i := range 100 {
		put(one, fmt.Sprint("filler", i), "filler", 1000)
		if find(one, "a") != "second" {
			t.Fatalf("what is used all the time has gone after %d others", i)
		}
	}
	if find(one, "filler0") != "" || find(one, "filler99") != "filler" || m.bytes > m.size || len(m.entries) != m.order.Len() {
		t.Errorf("%d objects of %d bytes are kept", len(m.entries), m.bytes)
	}
	if put(one, "large", "large", m.largest+1); find(one, "large") != "" {
		t.Error("a large object is kept")
	}
}
