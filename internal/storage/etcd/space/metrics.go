package space

import (
	"errors"
	"sync"

	"k8s.io/component-base/metrics"

	"github.com/unforked/kcp/internal/observe/meter"
)

// gauges are the metrics of a database. Databases that share a registry share them: the last
// measurement counts.
type gauges struct {
	mu                          sync.Mutex
	published                   bool
	used, quota, writable, full *metrics.Gauge
}

func newGauges() *gauges {
	gauge := func(name, help string) *metrics.Gauge {
		return metrics.NewGauge(&metrics.GaugeOpts{Subsystem: "kcp_etcd", Name: name, StabilityLevel: metrics.ALPHA, Help: help})
	}
	return &gauges{
		used:     gauge("used_bytes", "Bytes in use in the database, history included. Of an external etcd: of its fullest member."),
		quota:    gauge("quota_bytes", "Maximum size of the database; 0 if etcd does not tell it."),
		writable: gauge("creates_allowed", "1 if workspaces may create objects, 0 if the database or its disk is too full."),
		full:     gauge("full", "1 while etcd has its alarm for lack of space, or the disk is full: then only reads and deletions are possible."),
	}
}

// PublishMetrics registers the metrics of the database. register is the method of that name of a
// Kubernetes registry, or legacyregistry.Register.
func (c *Capacity) PublishMetrics(register func(metrics.Registerable) error) error {
	g := c.gauges
	g.mu.Lock()
	var errs [4]error
	for i, m := range []**metrics.Gauge{&g.used, &g.quota, &g.writable, &g.full} {
		*m, errs[i] = meter.Register(register, *m)
	}
	g.published = true
	g.mu.Unlock()
	c.Publish()
	return errors.Join(errs[:]...)
}

// Publish updates the metrics after a measurement.
func (c *Capacity) Publish() {
	g := c.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.published {
		return
	}
	disk := diskLevel(c.disk.Load())
	full := c.full.Load()
	g.used.Set(float64(c.used()))
	g.quota.Set(float64(c.quota.Load()))
	g.writable.Set(truth(!full && disk == diskSpacious && !c.Above(tenantsShare)))
	g.full.Set(truth(full || disk == diskFull))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
