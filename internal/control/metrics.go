package control

import (
	"errors"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/unforked/kcp/internal/observe/meter"
)

// Metrics count the work of a server's loops. The only label is the loop's name, so
// the number of series does not depend on the number of tenants. The zero value and
// nil count nothing.
type Metrics struct {
	waiting *metrics.GaugeVec
	adds    *metrics.CounterVec
	retries *metrics.CounterVec
	work    *metrics.HistogramVec
	leading *metrics.Gauge
}

// NewMetrics returns metrics. They count once they are registered.
func NewMetrics() *Metrics {
	const subsystem = "kcp_control"
	loop := []string{"loop"}
	return &Metrics{
		waiting: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Subsystem: subsystem, Name: "depth", StabilityLevel: metrics.ALPHA,
			Help: "Number of keys that wait for a worker of the loop, over all logical clusters.",
		}, loop),
		adds: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "adds_total", StabilityLevel: metrics.ALPHA,
			Help: "Number of keys that sources added to the loop's queue, without merged ones.",
		}, loop),
		retries: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "retries_total", StabilityLevel: metrics.ALPHA,
			Help: "Number of retries of keys after an error.",
		}, loop),
		leading: metrics.NewGauge(&metrics.GaugeOpts{
			Subsystem: subsystem, Name: "leading", StabilityLevel: metrics.ALPHA,
			Help: "1 if this server runs the loops of all servers on its etcd. Of those, one has 1.",
		}),
		work: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "work_duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time that the loop took to reconcile one key, in seconds.",
			Buckets: metrics.ExponentialBuckets(0.0001, 4, 10), // 100 µs to 26 s
		}, loop),
	}
}

// Register registers m. The argument register is the Register method of a Kubernetes
// registry, or legacyregistry.Register. Call it before loops run.
//
// Servers that share a registry share its metrics, which then hold their sums.
func (m *Metrics) Register(register func(metrics.Registerable) error) error {
	if m == nil || m.adds == nil {
		return nil
	}
	var errs [5]error
	m.waiting, errs[0] = meter.Register(register, m.waiting)
	m.adds, errs[1] = meter.Register(register, m.adds)
	m.retries, errs[2] = meter.Register(register, m.retries)
	m.work, errs[3] = meter.Register(register, m.work)
	m.leading, errs[4] = meter.Register(register, m.leading)
	return errors.Join(errs[:]...)
}

func (m *Metrics) on() bool { return m != nil && m.adds != nil }

func (m *Metrics) depth(loop string, change int) {
	// The gauge is changed by differences, because servers can share it.
	if m.on() && change != 0 {
		m.waiting.WithLabelValues(loop).Add(float64(change))
	}
}

func (m *Metrics) added(loop string) {
	if m.on() {
		m.adds.WithLabelValues(loop).Inc()
	}
}

func (m *Metrics) retried(loop string) {
	if m.on() {
		m.retries.WithLabelValues(loop).Inc()
	}
}

func (m *Metrics) worked(loop string, d time.Duration) {
	if m.on() {
		m.work.WithLabelValues(loop).Observe(d.Seconds())
	}
}

// leads counts the servers of the process that lead.
func (m *Metrics) leads(change float64) {
	if m.on() {
		m.leading.Add(change)
	}
}
