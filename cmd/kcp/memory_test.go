package main

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/google/go-cmp/cmp"
)

func TestPercent(t *testing.T) {
	for _, tc := range []struct {
		live uint64
		rate float64
		want int
	}{
		{0, 0, leastPercent}, {1 << 30, 0, leastPercent}, {restingHeap, 0, leastPercent}, {restingHeap / 2, 0, 100}, {restingHeap / 4, 0, 300},
		// A busy server has the garbage of two seconds, within a limit.
		{restingHeap, restingHeap, 200}, {restingHeap / 2, restingHeap / 8, 100}, {busyGarbage, busyGarbage, 100}, {busyGarbage, 1 << 40, 100},
		{4 * busyGarbage, 1 << 40, leastPercent},
	} {
		if got := percent(tc.live, leastPercent, tc.rate); got != tc.want {
			t.Errorf("percent(%d MiB, %.0f MiB/s) = %d, want %d", tc.live>>20, tc.rate/(1<<20), got, tc.want)
		}
	}
	if got := percent(1<<30, startPercent, 0); got != startPercent {
		t.Errorf("while the server starts: %d, want %d", got, startPercent)
	}
}

// The runtime gets a share of the cgroup's memory. A missing limit is no error, others are.
func TestLimitMemory(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "") // restores it after the test
	if err := os.Unsetenv("GOMEMLIMIT"); err != nil {
		t.Fatal(err)
	}
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	fails := func(err error) memlimit.Provider { return func() (uint64, error) { return 0, err } }
	for _, none := range []error{memlimit.ErrNoLimit, memlimit.ErrNoCgroup, memlimit.ErrCgroupsNotSupported} {
		if err := limitMemory(fails(none)); err != nil {
			t.Errorf("%v is an error: %v", none, err)
		}
	}
	if err := limitMemory(fails(os.ErrPermission)); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a file that cannot be read: %v", err)
	}
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("without a limit of the cgroup: %d", got)
	}
	if err := limitMemory(memlimit.Limit(10 << 30)); err != nil {
		t.Error(err)
	}
	if got := debug.SetMemoryLimit(-1); got != 8<<30 {
		t.Errorf("limit of the runtime: %d of %d", got, 10<<30)
	}
}

func TestAfterCollection(t *testing.T) {
	calls := make(chan struct{}, 100)
	afterCollection(func() {
		select {
		case calls <- struct{}{}:
		default:
		}
	})
	for range 3 { // calls must be repeatable
		runtime.GC()
		<-calls
	}
}

// An idle server returns memory if it holds far more than it needs.
func TestIdleness(t *testing.T) {
	const mib = 1 << 20
	busy, idle := uint64(100*mib), uint64(mib)
	for name, c := range map[string]struct {
		allocated func(look int) uint64
		live      uint64
		held      uint64
		want      []int // checks that return memory
	}{
		"at rest":            {func(int) uint64 { return idle }, 50 * mib, 300 * mib, []int{2, 4, 8, 16, 32}},
		"it has little":      {func(int) uint64 { return idle }, 10 * mib, 70 * mib, nil},
		"it holds little":    {func(int) uint64 { return idle }, 50 * mib, 100 * mib, nil},
		"always busy":        {func(int) uint64 { return busy }, 50 * mib, 300 * mib, nil},
		"busy for a while":   {func(look int) uint64 { return map[bool]uint64{true: busy, false: idle}[look <= 10] }, 50 * mib, 300 * mib, []int{12, 14, 18, 26, 42}},
		"busy now and again": {func(look int) uint64 { return map[bool]uint64{true: busy, false: idle}[look%20 == 0] }, 50 * mib, 300 * mib, []int{2, 4, 8, 16, 22, 24, 28, 36, 42, 44, 48, 56}},
	} {
		t.Run(name, func(t *testing.T) {
			var r idleness
			var got []int
			h := heap{live: c.live, held: c.held}
			for look := 1; look < 60; look++ {
				h.allocated += c.allocated(look)
				if r.look(h) {
					got = append(got, look)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("looks that give memory back (-want +got):\n%s", d)
			}
		})
	}
}

// The runtime has the metrics that are read. It would return nothing for unknown names.
func TestReadHeap(t *testing.T) {
	runtime.GC()
	if h := readHeap(); h.live == 0 || h.held < h.live || h.allocated == 0 {
		t.Errorf("got %+v", h)
	}
}
