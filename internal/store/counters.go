package store

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
)

// counters are what operators see of the caches of custom resources.
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

// PublishMetrics makes a registry serve what the store counts: how many custom
// resources have a watch cache, and how often one was started and stopped. register
// is the method of that name of a Kubernetes registry, or legacyregistry.Register.
// Call it once.
//
// Stores that share a registry share what is counted there.
func (s *Store) PublishMetrics(register func(metrics.Registerable) error) error {
	s.caches.mu.Lock()
	defer s.caches.mu.Unlock()
	c := s.caches.count
	var errs [3]error
	c.gauge, errs[0] = published(register, c.gauge)
	c.heated, errs[1] = published(register, c.heated)
	c.chilled, errs[2] = published(register, c.chilled)
	c.published = true
	c.gauge.Add(float64(c.warm.Load()))
	c.heated.Add(float64(c.warmings.Load()))
	c.chilled.Add(float64(c.coolings.Load()))
	return errors.Join(errs[:]...)
}

// published returns the metric that the registry serves under the name of m.
func published[M metrics.Registerable](register func(metrics.Registerable) error, m M) (M, error) {
	err := register(m)
	if err == nil {
		return m, nil
	}
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(M); ok {
			return existing, nil
		}
	}
	return m, fmt.Errorf("register metric %s: %w", m.FQName(), err)
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
