package watchcache

import (
	"maps"
	"testing"

	"k8s.io/component-base/metrics"
)

// Stores in one process add up in the shared registry: one series per metric.
func TestPublishMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	for range 2 {
		w, _ := kelvin(t)
		if err := w.store.Caches.PublishMetrics(registry.Register); err != nil {
			t.Fatal(err)
		}
		create(t, w.store, "c1")
		w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
		w.store.customs.done(warmed(t, w.apis[0], w.resource("1f0e")))
		w.store.customs.mu.Lock()
		w.store.customs.retire(w.resource("1f0e"))
		w.store.customs.mu.Unlock()
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) != 0 {
				t.Errorf("%s has labels: %v", f.GetName(), m.GetLabel())
			}
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{"kcp_store_warm_resources": 2, "kcp_store_warmings_total": 4, "kcp_store_coolings_total": 2}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
