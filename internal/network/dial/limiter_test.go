package dial

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// stuck is a hook that answers when the test releases it, or when its caller has disconnected.
func stuck(t *testing.T) (h *hook, reached chan struct{}) {
	t.Helper()
	reached = make(chan struct{}, 100)
	return newHook(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // until then it is not known that the caller has gone
		reached <- struct{}{}
		<-req.Context().Done()
		panic(http.ErrAbortHandler) // an answer could reach the caller while it closes the connection
	}), reached
}

// A tenant with hanging calls reaches its limit, without effect for other tenants. Calls end after
// a timeout.
func TestTenantsApart(t *testing.T) {
	hanging, reached := stuck(t)
	h := newHook(t, hello)
	d := newDialer(t, Options{Limits: Limits{TenantCalls: 2, TenantWaiting: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			_, err := d.get(ctx, "a", hanging, hanging.URL)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a call that hangs: %v", err)
			}
		})
	}
	<-reached
	<-reached
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := d.get(ended, "a", h, h.URL)
	wantError(t, err, "logical cluster a has reached its limit of 2 concurrent calls")
	waiting, stop := context.WithCancel(t.Context())
	calls.Go(func() {
		_, err := d.get(waiting, "a", h, h.URL)
		wantError(t, err, "logical cluster a has reached its limit of 2 concurrent calls")
	})
	until(t, func() bool { d.calls.mu.Lock(); defer d.calls.mu.Unlock(); return d.calls.by["a"].calls == 3 })
	_, err = d.get(t.Context(), "a", h, h.URL)
	wantError(t, err, "logical cluster a has 2 calls running and 1 waiting")
	if got, err := d.get(t.Context(), "b", h, h.URL); err != nil || got != "hello" {
		t.Errorf("another tenant's call: %q, %v", got, err)
	}
	stop()
	cancel()
	calls.Wait()
	if got, err := d.get(t.Context(), "a", h, h.URL); err != nil || got != "hello" {
		t.Errorf("after its calls have ended: %q, %v", got, err)
	}
	_, err = newDialer(t, Options{Limits: Limits{Timeout: time.Millisecond}}).get(t.Context(), "a", hanging, hanging.URL)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that nobody ends: %v", err)
	}
}

// until waits for other goroutines, without sleeping.
func until(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("it does not happen")
		}
	}
}

// All tenants together have a limit.
func TestAllTenants(t *testing.T) {
	hanging, reached := stuck(t)
	d := newDialer(t, Options{Limits: Limits{Calls: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() { _, _ = d.get(ctx, "a", hanging, hanging.URL) })
	<-reached
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := d.get(ended, "b", hanging, hanging.URL)
	wantError(t, err, "the server has reached its limit of 1 concurrent calls for logical clusters")
	cancel()
	calls.Wait()
}

// The clusters of one owner use a part of all calls and bytes, however many there are.
func TestOwnersShareTheirLimits(t *testing.T) {
	l := newLimiter(Limits{TenantCalls: 2, TenantWaiting: 1, Calls: 16, TenantHeld: 10, Held: 80}, func(c cluster.Name) cluster.Name { return c[:1] })
	var leave []func()
	for _, c := range []cluster.Name{"a1", "a2", "a3", "a1", "a2", "a3"} {
		if one, ok := l.try(c); ok {
			leave = append(leave, one)
		}
	}
	if len(leave) != 4 {
		t.Errorf("%d of 16 calls are of one owner, want 4", len(leave))
	}
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := l.enter(ended, "a3")
	wantError(t, err, "those of the same tenant have reached their limit of 4 concurrent calls")
	other, err := l.enter(ended, "b1")
	if err != nil {
		t.Errorf("another owner: %v", err)
	}
	if err := errors.Join(l.hold("a1", 10), l.hold("a2", 10), l.hold("b1", 10)); err != nil {
		t.Error(err)
	}
	one, ok := l.try("c1")
	if !ok {
		t.Fatal("a third owner has no calls")
	}
	wantError(t, l.hold("a2", 1), "exceed 10 bytes")
	_, _ = l.hold("a2", -11), l.hold("a1", 0)
	if err := l.hold("c1", 10); err != nil {
		t.Error(err)
	}
	_, _, _ = l.hold("a1", -10), l.hold("b1", -10), l.hold("c1", -10)
	for _, f := range append(leave, other, one) {
		f()
	}
	if len(l.by) != 0 || len(l.owners) != 0 || l.held != 0 {
		t.Errorf("left are %v, %v and %d bytes", l.by, l.owners, l.held)
	}
}
