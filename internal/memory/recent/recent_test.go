package recent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// A value is built once for all concurrent callers. Other values can be built at the same time.
func TestRecentBuildsOnceWithoutBlockingOthers(t *testing.T) {
	t.Parallel()
	c := New[string, int](10, time.Hour)
	var built atomic.Int32
	started, finish := make(chan struct{}), make(chan struct{})
	slow := func() (int, error) {
		built.Add(1)
		close(started)
		<-finish
		return 7, nil
	}
	var wg sync.WaitGroup
	ask := func() {
		if v, err := c.Get(t.Context(), "slow", slow); v != 7 || err != nil {
			t.Errorf("got %d, %v", v, err)
		}
	}
	wg.Go(ask)
	<-started
	for range 8 {
		wg.Go(ask)
	}
	if v, err := c.Get(t.Context(), "quick", func() (int, error) { return 1, nil }); v != 1 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Get(gone, "slow", slow); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a client that is gone", err)
	}
	close(finish)
	wg.Wait()
	if got := built.Load(); got != int32(1) {
		t.Errorf("built"+": %v", got)
	}
}

func TestRecentForgetsFailures(t *testing.T) {
	t.Parallel()
	c := New[string, int](10, time.Hour)
	wrong := errors.New("wrong")
	if _, err := c.Get(t.Context(), "a", func() (int, error) { return 0, wrong }); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	quiet := klog.NewContext(t.Context(), klog.Logger{})
	if _, err := c.Get(quiet, "a", func() (int, error) { panic("at the disco") }); err == nil || !strings.Contains(err.Error(), "at the disco") {
		t.Errorf("got %v", err)
	}
	if v, err := c.Get(t.Context(), "a", func() (int, error) { return 3, nil }); v != 3 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
}

func TestRecentKeepsWhatWasUsedLast(t *testing.T) {
	t.Parallel()
	c := New[string, int](2, time.Minute)
	now := time.Unix(0, 0)
	c.now = func() time.Time { return now }
	var built []string
	ask := func(keys ...string) {
		for _, key := range keys {
			if _, err := c.Get(t.Context(), key, func() (int, error) { built = append(built, key); return 0, nil }); err != nil {
				t.Error(err)
			}
		}
	}
	ask("a", "b", "a", "c", "a", "b") // c pushes b out, as a was used later
	if got := strings.Join(built, ""); got != "abcb" {
		t.Errorf("by count"+": %v", got)
	}
	built = nil
	now = now.Add(40 * time.Second)
	ask("a")
	now = now.Add(40 * time.Second)
	ask("a", "b") // b was last used 80 seconds ago
	if got := strings.Join(built, ""); got != "b" {
		t.Errorf("by time"+": %v", got)
	}
	now = now.Add(time.Hour)
	ask("x")
	if len(c.entries) != 1 || c.order.Len() != 1 {
		t.Errorf("%d entries are left, %d in order", len(c.entries), c.order.Len())
	}
}
