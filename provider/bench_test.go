package provider_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/unforked/kcp/kcptest"
)

// BenchmarkTenant measures what an engaged tenant without objects costs a provider with one
// controller: memory, goroutines, and the time from the start of the manager until it is
// engaged. Run it without the race detector: go test -run '^$' -bench Tenant -benchtime 1000x
func BenchmarkTenant(b *testing.B) {
	b.Run("one source", func(b *testing.B) { measure(b, false) })
	b.Run("a source for each", func(b *testing.B) { measure(b, true) })
}

func measure(b *testing.B, eachTenant bool) {
	b.Helper()
	p, r := exporter(b), newRecord()
	var tenants []*kcptest.Cluster
	for range b.N {
		tenants = append(tenants, bound(b, p))
	}
	memory, goroutines := held()
	started := time.Now()
	b.ResetTimer()
	running := runWith(b, p.Config, r, nil, eachTenant)
	until(b, "all are engaged", func() bool { return len(r.of("")) == b.N })
	b.StopTimer()
	took := time.Since(started)
	after, now := held()
	b.ReportMetric(float64(after-memory)/float64(b.N), "B/tenant")
	b.ReportMetric(float64(now-goroutines)/float64(b.N), "goroutines/tenant")
	b.ReportMetric(float64(took.Milliseconds()), "ms")
	runtime.KeepAlive(tenants)
	running.stop()
}

// held returns the bytes of the heap and of stacks in use, and the number of goroutines.
func held() (int64, int) {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}
