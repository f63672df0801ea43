package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// heapShare is how much of the memory of a cgroup the Go runtime may use. The rest is for the
// pages of etcd's file, which the kernel can reclaim.
const heapShare = 0.8

// limitMemory makes the garbage collector work harder before the memory of the cgroup is full.
// It does nothing without such a limit, or if GOMEMLIMIT is set.
func limitMemory(limit memlimit.Provider) error {
	_, err := memlimit.Set(memlimit.WithProvider(limit), memlimit.WithRatio(heapShare))
	if err != nil && !errors.Is(err, memlimit.ErrNoCgroup) && !errors.Is(err, memlimit.ErrCgroupsNotSupported) {
		return fmt.Errorf("read the memory limit of the cgroup (to set a limit yourself, set GOMEMLIMIT): %w", err)
	}
	return nil
}

// Limits for garbage. A small heap may grow to restingHeap before a collection: collecting
// more often would cost more time than the memory is worth. In a large heap, the default of
// 100 percent garbage would double the memory per workspace. A busy server may have more
// garbage, up to busyGarbage: its collections take processor time from requests.
const (
	restingHeap  = 144 << 20 // bytes
	leastPercent = 60        // GOGC of a large heap
	startPercent = 25        // and while the server starts: it fills its caches then
	busyGarbage  = 384 << 20 // bytes
	collectEvery = 2         // seconds between two collections of a busy server
)

// tuneCollector adjusts the garbage collector to these limits, and returns memory to the
// operating system while the server is idle, until ctx ends. The caller calls the returned
// function once the server has started. It does nothing if GOGC is set.
func tuneCollector(ctx context.Context) (started func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	var began atomic.Bool
	last, at := readHeap(), time.Now()
	afterCollection(func() {
		h, now := readHeap(), time.Now()
		rate := float64(h.allocated-last.allocated) / now.Sub(at).Seconds()
		last, at = h, now
		if !began.Load() {
			debug.SetGCPercent(percent(h.live, startPercent, 0))
			return
		}
		debug.SetGCPercent(percent(h.live, leastPercent, rate))
	})
	go giveBack(ctx)
	return func() { began.Store(true) }
}

// percent returns the GOGC, and at least the given one, for a heap with that many live bytes,
// which allocates so many bytes a second.
func percent(live uint64, least int, rate float64) int {
	if live == 0 {
		return least
	}
	garbage := max(restingHeap-float64(live), min(rate*collectEvery, busyGarbage))
	return max(least, int(garbage*100/float64(live)))
}

// afterCollection calls f after every garbage collection: the finalizer of a sentinel object
// runs then, and allocates a new sentinel.
func afterCollection(f func()) {
	type sentinel struct{ _ [16]byte }
	var arm func(*sentinel)
	arm = func(*sentinel) {
		f()
		runtime.SetFinalizer(&sentinel{}, arm)
	}
	runtime.SetFinalizer(&sentinel{}, arm)
}

// Limits for returning memory. The runtime by itself keeps memory that it expects to need
// again, after its experience of the past.
const (
	lookEvery  = 15 * time.Second
	restedLook = 2  // idle looks before memory is returned for the first time
	lastLook   = 32 // and for the last time; the intervals double, as caches end minutes later
	fewBytes   = 8 << 20
	spareBytes = 32 << 20        // that an idle server may hold besides 1.5 times the live bytes
	leastBytes = restingHeap / 2 // that a server may always hold
)

// heap has metrics of the runtime, in bytes.
type heap struct {
	allocated uint64 // in total since the start
	live      uint64 // after the last collection
	held      uint64 // from the operating system
}

// An idleness counts for how many looks a server has been idle.
type idleness struct {
	last  uint64 // allocated at the last look
	looks int    // consecutive looks that found the server idle
}

// look reports whether to return memory now.
func (r *idleness) look(h heap) bool {
	recent := h.allocated - r.last
	r.last = h.allocated
	if recent > fewBytes+h.live/4 {
		r.looks = 0
		return false
	}
	r.looks = min(r.looks+1, lastLook+1)
	due := r.looks >= restedLook && r.looks <= lastLook && r.looks&(r.looks-1) == 0
	return due && h.held > max(h.live+h.live/2+spareBytes, leastBytes)
}

// giveBack returns memory while the server is idle, until ctx ends.
func giveBack(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var r idleness
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if r.look(readHeap()) {
				debug.FreeOSMemory()
			}
		}
	}
}

func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return heap{s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64() + s[3].Value.Uint64() + s[4].Value.Uint64()}
}
