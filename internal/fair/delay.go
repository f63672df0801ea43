package fair

import (
	"runtime/metrics"
	"sync"
	"time"
)

// delays measures how long goroutines wait for a processor.
type delays struct {
	mu     sync.Mutex
	at     time.Time // of the last measurement
	sample []metrics.Sample
	counts []uint64 // of the last measurement, by bucket
	mean   time.Duration
}

const (
	schedLatencies = "/sched/latencies:seconds" // documented in runtime/metrics
	delayPeriod    = 100 * time.Millisecond
)

func newDelays() *delays {
	return &delays{sample: []metrics.Sample{{Name: schedLatencies}}}
}

// recent returns the mean of the waits since the last measurement. It measures at most
// every 100 ms. It returns 0 if the runtime has no such metric.
func (d *delays) recent() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Sub(d.at) < delayPeriod {
		return d.mean
	}
	d.at = now
	metrics.Read(d.sample)
	if d.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	h := d.sample[0].Value.Float64Histogram()
	if len(d.counts) != len(h.Counts) {
		d.counts = make([]uint64, len(h.Counts))
	}
	var n uint64
	var seconds float64
	for i, count := range h.Counts {
		// The lower bound of a bucket is finite and at least 0, except for the first.
		more := count - d.counts[i]
		n, seconds = n+more, seconds+float64(more)*max(0, h.Buckets[i])
		d.counts[i] = count
	}
	d.mean = 0
	if n > 0 {
		d.mean = time.Duration(seconds / float64(n) * float64(time.Second))
	}
	return d.mean
}
