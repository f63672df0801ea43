package fleet

import (
	"strings"
	"testing"
)

// Statuses are written once per second and object, and the memory of that is bounded.
func TestPace(t *testing.T) {
	var p pace
	at := now()
	if p.wait(key("a"), at) != 0 || p.wait(key("a"), at.Add(400*ms)) != 600*ms || p.wait(key("b"), at) != 0 || p.wait(key("a"), at.Add(1000*ms)) != 0 {
		t.Error("not one per second and object")
	}
	for i := range 10 * swept {
		at = at.Add(10 * ms)
		p.wait(key(strings.Repeat("x", i%7)+string(rune(i))), at)
	}
	if len(p.last) > swept+1 {
		t.Errorf("%d entries", len(p.last))
	}
}
