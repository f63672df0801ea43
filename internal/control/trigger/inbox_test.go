package trigger

import (
	"fmt"
	"slices"
	"testing"

	"github.com/unforked/kcp/internal/control"
)

func TestAnInboxLosesNothing(t *testing.T) {
	all := []control.Key{{Name: "a"}, {Name: "b"}}
	b := New(func() []control.Key { return all })
	var woken []control.Key
	run := func() func() {
		return b.Subscribe(func(k control.Key) { woken = append(woken, k) })
	}
	check := func(step string, want ...control.Key) {
		t.Helper()
		if !slices.Equal(woken, want) {
			t.Errorf("%s: woken %v, want %v", step, woken, want)
		}
		woken = nil
	}
	b.Put(all[0])
	stop := run()
	check("put before", all[0])
	b.Put(all[1])
	check("put while it runs", all[1])
	stop()
	stop = run()
	check("what was queued when it stopped is not known", all...)
	stop()

	b = New(b.all)
	for i := range MaxWaiting + 1 {
		b.Put(control.Key{Name: fmt.Sprint(i)})
	}
	run()
	check("after a long time", all...)
}
