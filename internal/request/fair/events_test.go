package fair

import (
	"testing"
	"testing/synctest"
	"time"
)

// The watches of a tenant deliver events at a limited rate, and do not delay the watches of other
// tenants.
func TestEventsOfATenantAreLimited(t *testing.T) {
	limit := limits()
	limit.Watches = 10
	synctest.Test(t, func(t *testing.T) {
		s := New(limit)
		watch := func(tenant string) *Work {
			w := s.work(tenant)
			if err := w.Watch(); err != nil {
				t.Fatal(err)
			}
			return w
		}
		deliver := func(w *Work, events int) time.Duration {
			begin := time.Now()
			for range events {
				if err := w.Deliver(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(begin)
		}
		one, two, other := watch("noisy"), watch("noisy"), watch("quiet")
		if took := deliver(one, eventBurst); took != 0 {
			t.Errorf("a burst took %v", took)
		}
		if took := deliver(two, 2*eventRate).Round(time.Millisecond); took != 2*time.Second {
			t.Errorf("another watch of the tenant delivered the events of two seconds in %v", took)
		}
		if took := deliver(other, 100); took != 0 {
			t.Errorf("another tenant waited for %v", took)
		}
		for _, w := range []*Work{one, two, other} {
			w.End()
		}
		if !s.Idle() {
			t.Error("limits are left")
		}
		if err := s.work("noisy").Deliver(t.Context()); err != nil {
			t.Errorf("a request that is no watch: %v", err)
		}
	})
}
