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
	d.mean = meanSince(d.counts, h)
	d.counts = append(d.counts[:0], h.Counts...)
	return d.mean
}

// meanSince returns the mean of the waits in a histogram of seconds that are not in before,
// the counts of an earlier state of it.
func meanSince(before []uint64, h *metrics.Float64Histogram) time.Duration {
	var n uint64
	var seconds float64
	for i, more := range h.Counts {
		if i < len(before) {
			more -= before[i]
		}
		// The lower bound of a bucket is finite and at least 0, except for the first.
		n, seconds = n+more, seconds+float64(more)*max(0, h.Buckets[i])
	}
	if n == 0 {
		return 0
	}
	return time.Duration(seconds / float64(n) * float64(time.Second))
}
