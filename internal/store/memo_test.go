package store

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What was decoded is not decoded again while it is among what was used last, each
// schema has its own, failures are not kept, and neither is what is large.
func TestMemo(t *testing.T) {
	m := newMemo(1000)
	decoded := 0
	get := func(by *custom, name string, bytes int) *unstructured.Unstructured {
		t.Helper()
		o, err := m.get(m.key(by, &Raw{framed: []byte(name)}), bytes, func() (*unstructured.Unstructured, error) {
			decoded++
			return &unstructured.Unstructured{Object: map[string]any{"name": name}}, nil
		})
		if err != nil || o.Object["name"] != name {
			t.Fatalf("got %v, %v", o, err)
		}
		return o
	}
	one, other := &custom{}, &custom{}
	first := get(one, "a", 100)
	if get(one, "a", 100) != first || decoded != 1 {
		t.Errorf("decoded %d times", decoded)
	}
	if get(other, "a", 100) == first || decoded != 2 {
		t.Error("two schemas read the same")
	}
	for i := range 8 {
		get(one, fmt.Sprint("filler", i), 100)
		get(one, "a", 100)
	}
	before := decoded
	if get(one, "a", 100); decoded != before {
		t.Error("what is used all the time has gone")
	}
	if get(one, "b", 600); len(m.entries) != 5 || m.bytes > 1000 {
		t.Errorf("%d objects of %d bytes are kept", len(m.entries), m.bytes)
	}
	before = decoded
	get(one, "large", memoLargest+1)
	if get(one, "large", memoLargest+1); decoded != before+2 {
		t.Error("a large object is kept")
	}
	broken := errors.New("broken")
	for range 2 {
		if _, err := m.get(m.key(one, &Raw{framed: []byte("broken")}), 1, func() (*unstructured.Unstructured, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}
