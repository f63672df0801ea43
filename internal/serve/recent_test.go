package serve

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

// A value is built once for all concurrent callers. Other values can be built at the same time.
func TestRecentBuildsOnceWithoutBlockingOthers(t *testing.T) {
	t.Parallel()
	c := newRecent[string, int](10, time.Hour)
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
		if v, err := c.get(t.Context(), "slow", slow); v != 7 || err != nil {
			t.Errorf("got %d, %v", v, err)
		}
	}
	wg.Go(ask)
	<-started
	for range 8 {
		wg.Go(ask)
	}
	if v, err := c.get(t.Context(), "quick", func() (int, error) { return 1, nil }); v != 1 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.get(gone, "slow", slow); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a client that is gone", err)
	}
	close(finish)
	wg.Wait()
	equal(t, "built", built.Load(), int32(1))
}

func TestRecentForgetsFailures(t *testing.T) {
	t.Parallel()
	c := newRecent[string, int](10, time.Hour)
	wrong := errors.New("wrong")
	if _, err := c.get(t.Context(), "a", func() (int, error) { return 0, wrong }); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	quiet := klog.NewContext(t.Context(), klog.Logger{})
	if _, err := c.get(quiet, "a", func() (int, error) { panic("at the disco") }); err == nil || !strings.Contains(err.Error(), "at the disco") {
		t.Errorf("got %v", err)
	}
	if v, err := c.get(t.Context(), "a", func() (int, error) { return 3, nil }); v != 3 || err != nil {
		t.Errorf("got %d, %v", v, err)
	}
}

func TestRecentKeepsWhatWasUsedLast(t *testing.T) {
	t.Parallel()
	c := newRecent[string, int](2, time.Minute)
	now := time.Unix(0, 0)
	c.now = func() time.Time { return now }
	var built []string
	ask := func(keys ...string) {
		for _, key := range keys {
			if _, err := c.get(t.Context(), key, func() (int, error) { built = append(built, key); return 0, nil }); err != nil {
				t.Error(err)
			}
		}
	}
	ask("a", "b", "a", "c", "a", "b") // c pushes b out, as a was used later
	equal(t, "by count", strings.Join(built, ""), "abcb")
	built = nil
	now = now.Add(40 * time.Second)
	ask("a")
	now = now.Add(40 * time.Second)
	ask("a", "b") // b was last used 80 seconds ago
	equal(t, "by time", strings.Join(built, ""), "b")
	now = now.Add(time.Hour)
	ask("x")
	if len(c.entries) != 1 || c.order.Len() != 1 {
		t.Errorf("%d entries are left, %d in order", len(c.entries), c.order.Len())
	}
}

// Clusters of equal shape share all documents, and those of similar shape the equal ones.
func TestEqualShapesShareOneBuild(t *testing.T) {
	t.Parallel()
	contents := own(t)
	extra := content(t, define("example.com", "widgets", "Widget", "v1"))
	shapes := map[cluster.Name]*Shape{"other": shapeOf(append(own(t), extra)...)}
	names := []cluster.Name{"a", "b", "c", "d", "other"}
	for _, n := range names[:4] {
		shapes[n] = shapeOf(contents...)
	}
	w := startWorld(t, shapes)
	var wg sync.WaitGroup
	for _, n := range names {
		for _, path := range []string{"/apis", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/tenancy.kcp.io/v1alpha1", "/apis/core.kcp.io/v1alpha1"} {
			wg.Go(func() {
				if r := w.get(t, n, path, "Accept", "application/json"); r.Code != http.StatusOK {
					t.Errorf("%s%s: %d %s", n, path, r.Code, r.Body)
				}
			})
		}
	}
	wg.Wait()
	equal(t, "discoveries", len(w.groups.entries), 2)
	equal(t, "OpenAPI version 2", len(w.openAPIV2.entries), 2)
	equal(t, "OpenAPI version 3", len(w.openAPIV3.entries), 2)
	equal(t, "hashes", len(w.hashes.entries), 3)
	equal(t, "documents", len(w.documents.entries), 3)
}

// A document with the same hash is always the same.
func TestDocumentsAreBuiltAgain(t *testing.T) {
	t.Parallel()
	w := startWorld(t, map[cluster.Name]*Shape{"a": shapeOf(append(own(t), content(t, define("coordination.k8s.io", "clocks", "Clock", "v1")))...)})
	w.documents.limit = 1
	before := urls(t, w, "a")
	for _, n := range []string{"apis/tenancy.kcp.io/v1alpha1", "apis/core.kcp.io/v1alpha1", "apis/coordination.k8s.io/v1", "apis/tenancy.kcp.io/v1alpha1"} {
		r := w.get(t, "a", before[n])
		equal(t, n, r.Code, http.StatusOK)
		equal(t, n+", in "+before[n], strings.HasSuffix(before[n], "?hash="+strings.Trim(r.Header().Get("Etag"), `"`)), true)
		equal(t, "documents", len(w.documents.entries), 1)
	}
}
