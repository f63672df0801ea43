package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// How much garbage may gather. With little in memory, collecting often would cost
// more time than the memory is worth; with much, letting garbage double it, as is
// the default, would make every workspace cost twice.
const (
	restingHeap  = 144 << 20 // bytes of heap up to which there is no hurry
	leastPercent = 60        // of garbage beside what is live, however much that is
)

// tuneCollector has the garbage collector keep to that. It does nothing if the user
// has set GOGC.
func tuneCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	afterCollection(func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		debug.SetGCPercent(percent(m.HeapAlloc))
	})
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
