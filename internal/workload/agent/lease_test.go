package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A lease ends by the clock that says so first: a machine that slept did not count, and one whose clock was
// set back did.
func TestLeaseClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		slept := begun.Round(0) // without a monotonic reading: only the clock on the wall has gone on
		for name, c := range map[string]struct {
			begun  time.Time
			after  time.Duration
			length time.Duration
			want   bool
		}{
			"no lease":       {begun, time.Hour, 0, false},
			"valid":          {begun, 40 * time.Second, 40 * time.Second, false},
			"over":           {begun, 41 * time.Second, 40 * time.Second, true},
			"over in sleep":  {slept, 41 * time.Second, 40 * time.Second, true},
			"valid in sleep": {slept, 39 * time.Second, 40 * time.Second, false},
		} {
			l := &lease{}
			l.begin(c.begun, c.length)
			if got := l.overAt(begun.Add(c.after)); got != c.want {
				t.Errorf("%s: %v", name, got)
			}
		}
		l := &lease{}
		l.begin(time.Now(), takeover)
		time.Sleep(takeover + time.Second)
		if !l.over() {
			t.Error("a replica that has just begun to lead counts on the server for too long")
		}
	})
}

func TestQuiet(t *testing.T) {
	patch := map[string]any{"spec": map[string]any{"replicas": 0}}
	for replicas, want := range map[int64]bool{0: true, 3: false} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": replicas, "other": "x"}}}
		if quiet(o, patch) != want {
			t.Errorf("%d replicas", replicas)
		}
	}
	if quiet(&unstructured.Unstructured{Object: map[string]any{}}, patch) {
		t.Error("an object without a specification is quiet")
	}
}
