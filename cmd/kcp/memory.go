package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage may gather. With little in memory, collecting often would cost
// more time than the memory is worth; with much, letting garbage double it, as is
// the default, would make every workspace cost twice.
const (
	restingHeap  = 144 << 20 // bytes of heap up to which there is no hurry
	leastPercent = 60        // of garbage beside what is live, however much that is
)

// tuneCollector has the garbage collector keep to that, and gives memory back to the
// operating system while the server rests, until ctx ends. It does nothing if the user
// has set GOGC.
func tuneCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	afterCollection(func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		debug.SetGCPercent(percent(m.HeapAlloc))
	})
	go giveBack(ctx)
}

// percent returns the GOGC for a heap of which so many bytes are live.
func percent(live uint64) int {
	if live == 0 || live >= restingHeap {
		return leastPercent
	}
	return max(leastPercent, int((restingHeap-live)*100/live))
}

// afterCollection calls f after every garbage collection: a finalizer runs then,
// and puts out a new sentinel.
func afterCollection(f func()) {
	type sentinel struct{ _ [16]byte }
	var arm func(*sentinel)
	arm = func(*sentinel) {
		f()
		runtime.SetFinalizer(&sentinel{}, arm)
	}
	runtime.SetFinalizer(&sentinel{}, arm)
}

// When memory is given back. The runtime does that by itself only as far as it does
// not expect to need it again, and expects to need what it once did.
const (
	lookEvery  = 15 * time.Second
	restedLook = 2  // looks at a server at rest, after which memory is given back first
	lastLook   = 32 // and last; in between the time doubles, as caches go minutes later
	fewBytes   = 8 << 20
	spareBytes = 32 << 20        // beside half of what is live, that may be held at rest
	leastBytes = restingHeap / 2 // that may be held in any case
)

// heap is what the runtime says of it.
type heap struct {
	allocated uint64 // ever
	live      uint64 // as of the last collection
	held      uint64 // of the operating system
}

// An idleness is how long a server has been at rest.
type idleness struct {
	last  uint64 // allocated at the last look
	looks int    // that found it at rest
}

// look reports whether it is time to give memory back.
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

// giveBack looks at the heap from time to time, until ctx ends.
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
