package meter

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
)

func TestRegister(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	gauge := func() *metrics.Gauge {
		return metrics.NewGauge(&metrics.GaugeOpts{Name: "depth", StabilityLevel: metrics.ALPHA, Help: "How deep it is."})
	}
	first := gauge()
	if m, err := Register(registry.Register, first); m != first || err != nil {
		t.Fatalf("the first of its name became %v, %v", m, err)
	}
	if m, err := Register(registry.Register, gauge()); m != first || err != nil {
		t.Errorf("the second of its name became %v, %v; want the first", m, err)
	}
	counter := metrics.NewCounter(&metrics.CounterOpts{Name: "depth", StabilityLevel: metrics.ALPHA, Help: "How deep it is."})
	if m, err := Register(registry.Register, counter); m != counter || err == nil || !strings.Contains(err.Error(), "register metric depth: ") {
		t.Errorf("one of another type became %v, %v; want itself and an error that names it", m, err)
	}
}
