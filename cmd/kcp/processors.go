package main

import (
	"os"
	"runtime"
)

// spare is how many more operating system threads run goroutines than there are processors.
// The Go scheduler lets a goroutine compute for ten milliseconds before the next one gets its
// thread; the operating system gives a thread that wakes up a processor much earlier. So short
// requests do not wait for long ones.
const spare = 2

// useProcessors returns the number of processors for requests, and adds the spare threads. It
// changes nothing if GOMAXPROCS is set.
func useProcessors() int {
	processors := runtime.GOMAXPROCS(0)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors + spare)
	}
	return processors
}
