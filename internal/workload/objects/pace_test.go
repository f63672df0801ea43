package objects

import (
	"fmt"
	"testing"
	"time"

	"github.com/unforked/kcp"
)

// Objects are written once per second, and the memory of that is bounded.
func TestPace(t *testing.T) {
	const ms = time.Millisecond
	var p Pace
	at, a, b := time.Unix(1_000_000, 0), kcp.Key{Name: "a"}, kcp.Key{Name: "b"}
	if p.Wait(a, at) != 0 || p.Wait(a, at.Add(400*ms)) != 600*ms || p.Wait(b, at) != 0 || p.Wait(a, at.Add(1000*ms)) != 0 {
		t.Error("not one per second and object")
	}
	for i := range 10 * swept {
		at = at.Add(10 * ms)
		p.Wait(kcp.Key{Name: fmt.Sprint(i)}, at)
	}
	if len(p.last) > swept+1 {
		t.Errorf("%d entries", len(p.last))
	}
}
