package watchcache

import (
	"errors"
	"sync/atomic"

	"k8s.io/component-base/metrics"

	"github.com/unforked/kcp/internal/observe/meter"
)

// counters are the metrics of the caches of custom resources.
type counters struct {
	warm, warmings, coolings atomic.Int64 // of this store
	// of all stores that share a registry
	gauge           *metrics.Gauge
	heated, chilled *metrics.Counter
	published       bool // guarded by the lock of the caches
}

func newCounters() *counters {
	const subsystem = "kcp_store"
	return &counters{
		gauge: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: subsystem, Name: "warm_resources", StabilityLevel: metrics.ALPHA,
			Help: "Custom resources that have a watch cache, because lists read much of them.",
		}),
		heated: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "warmings_total", StabilityLevel: metrics.ALPHA,
			Help: "Watch caches of custom resources that were started.",
		}),
		chilled: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "coolings_total", StabilityLevel: metrics.ALPHA,
			Help: "Watch caches of custom resources that were stopped, to make room or because they were of no use any more.",
		}),
	}
}

// PublishMetrics registers the metrics of the store: how many custom resources have a watch
// cache, and how often one was started and stopped. register is the method of that name of
// a Kubernetes registry, or legacyregistry.Register. Call it once.
//
// Stores that share a registry share the metrics.
func (c *Caches) PublishMetrics(register func(metrics.Registerable) error) error {
	c.customs.mu.Lock()
	defer c.customs.mu.Unlock()
	n := c.customs.count
	var errs [3]error
	n.gauge, errs[0] = meter.Register(register, n.gauge)
	n.heated, errs[1] = meter.Register(register, n.heated)
	n.chilled, errs[2] = meter.Register(register, n.chilled)
	n.published = true
	n.gauge.Add(float64(n.warm.Load()))
	n.heated.Add(float64(n.warmings.Load()))
	n.chilled.Add(float64(n.coolings.Load()))
	return errors.Join(errs[:]...)
}

func (c *counters) warmed() {
	c.warm.Add(1)
	c.warmings.Add(1)
	if c.published {
		c.gauge.Inc()
		c.heated.Inc()
	}
}

func (c *counters) cooled() {
	c.warm.Add(-1)
	c.coolings.Add(1)
	if c.published {
		c.gauge.Dec()
		c.chilled.Inc()
	}
}
