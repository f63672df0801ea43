package fair

import (
	"testing"
	"testing/synctest"
	"time"
)

// While several tenants use the server, a tenant whose commits etcd has begins no other request for a while, unless they
// end. Other tenants do.
func TestNewCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits()
		l.LightShared = 1
		s := New(l)
		// waits returns how long a request of a tenant waits for a seat.
		waits := func(tenant string) time.Duration {
			w := s.work(tenant)
			defer w.End()
			begin := time.Now()
			if err := w.Compute(t.Context(), Light); err != nil {
				t.Error(err)
			}
			return time.Since(begin)
		}
		// commit begins a request that commits until the returned channel is closed.
		commit := func(tenant string) chan struct{} {
			w, acknowledged := s.work(tenant), make(chan struct{})
			go func() {
				defer w.End()
				ctx := With(t.Context(), w)
				if err := w.Compute(ctx, Light); err != nil {
					t.Error(err)
				}
				Commit(ctx, func() { <-acknowledged })
			}()
			synctest.Wait()
			return acknowledged
		}
		expect := func(what string, got, want time.Duration) {
			t.Helper()
			if got != want {
				t.Errorf("%s: it waited for %v, want %v", what, got, want)
			}
		}
		one, two := commit("noisy"), commit("noisy")
		expect("alone", waits("noisy"), 0)
		<-time.After(2 * newFor)
		close(one)
		close(two)
		expect("another tenant", waits("quiet"), 0)
		one = commit("noisy")
		expect("one commit", waits("noisy"), 0)
		two = commit("noisy")
		expect("another tenant beside two commits", waits("quiet"), 0)
		time.AfterFunc(newFor/2, func() { close(one) })
		expect("a commit that ends", waits("noisy"), newFor/2)
		one = commit("noisy")
		expect("commits that do not end", waits("noisy"), newFor/2)
		expect("while they go on", waits("noisy"), 0)
		close(one)
		close(two)
		synctest.Wait()
		Commit(t.Context(), func() {}) // of nobody
		if !s.Idle() {
			t.Errorf("left: %+v", s)
		}
	})
}
