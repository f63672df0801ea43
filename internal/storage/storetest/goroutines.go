package storetest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// stacks counts goroutines by the function that started them.
func stacks() map[string]int {
	buf := make([]byte, 1<<20)
	for n := 0; ; buf = make([]byte, 2*len(buf)) {
		if n = runtime.Stack(buf, true); n < len(buf) {
			buf = buf[:n]
			break
		}
	}
	all := map[string]int{}
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		if _, by, ok := strings.Cut(g, "created by "); ok {
			by, _, _ = strings.Cut(by, " in goroutine")
			all[by]++
		}
	}
	return all
}

// NoneLeft checks that f leaves no goroutines. Goroutines that are still ending have a
// minute.
func NoneLeft(t *testing.T, f func()) {
	t.Helper()
	f() // libraries start some goroutines once per process
	before, began := stacks(), time.Now()
	f()
	for {
		left := ""
		for by, n := range stacks() {
			if n > before[by] {
				left += fmt.Sprintf("\n%d more started by %s", n-before[by], by)
			}
		}
		if left == "" {
			return
		}
		if deadline, ok := t.Deadline(); ok && time.Until(deadline) < time.Minute || time.Since(began) > time.Minute {
			t.Fatalf("goroutines are left:%s", left)
		}
		runtime.Gosched()
	}
}
