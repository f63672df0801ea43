package autoscale

import (
	"testing"
	"time"

	"github.com/unforked/kcp"
)

// TestTurns lets more objects of a workspace be due than may be evaluated at a time, one of which is deleted while it
// waits. All others get their turn, and another workspace does not wait for them.
func TestTurns(t *testing.T) {
	turns := newTurns(time.Minute, 2)
	var woken []kcp.Key
	turns.source().Subscribe(func(key kcp.Key) { woken = append(woken, key) })
	now := time.Now()
	key := func(name string) kcp.Key { return kcp.Key{Cluster: "one", Namespace: "default", Name: name} }
	var leave []func()
	for _, name := range []string{"a", "b", "c", "d", "c"} {
		left, done := turns.enter(key(name), now)
		if left != 0 || (done == nil) != (len(leave) == 2) {
			t.Errorf("%s: left %s, begins: %v", name, left, done != nil)
		}
		if done != nil {
			leave = append(leave, done)
		}
		turns.next("one")
	}
	if _, done := turns.enter(kcp.Key{Cluster: "two", Namespace: "default", Name: "a"}, now); done == nil || len(woken) > 0 {
		t.Errorf("another workspace begins: %v; woken: %v", done != nil, woken)
	}
	leave[0]()
	turns.next("one")
	if len(woken) != 1 {
		t.Fatalf("woken: %v", woken)
	}
	// It was deleted meanwhile.
	if turns.drop(woken[0]) {
		t.Error("one that waited was evaluated")
	}
	turns.next("one")
	if len(woken) != 2 || woken[0] == woken[1] {
		t.Fatalf("woken: %v", woken)
	}
	if _, done := turns.enter(woken[1], now); done == nil || turns.counted(key("")) != 3 {
		t.Errorf("begins: %v; %d were evaluated", done != nil, turns.counted(key("")))
	}
	if left, done := turns.enter(key("a"), now.Add(time.Second)); left != 59*time.Second || done != nil {
		t.Errorf("a begins: %v, or after %s", done != nil, left)
	}
	for _, name := range []string{"a", "b", woken[1].Name} {
		if !turns.drop(key(name)) {
			t.Errorf("%s was not evaluated", name)
		}
	}
	if len(turns.count)+len(turns.last) != 2 || len(turns.waiting) > 0 { // those of the other workspace
		t.Errorf("left: %v %v %v", turns.count, turns.last, turns.waiting)
	}
}
