package main

import (
	"runtime"
	"testing"
)

func TestPercent(t *testing.T) {
	for _, tc := range []struct {
		live uint64
		want int
	}{
		{0, leastPercent}, {1 << 30, leastPercent}, {restingHeap, leastPercent}, {restingHeap / 2, 100}, {restingHeap / 4, 300},
	} {
		if got := percent(tc.live); got != tc.want {
			t.Errorf("percent(%d MiB) = %d, want %d", tc.live>>20, got, tc.want)
		}
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
	for range 3 { // it is called again and again
		runtime.GC()
		<-calls
	}
}
