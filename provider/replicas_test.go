package provider_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/kcptest"
	"github.com/unforked/kcp/provider"
)

// TestReplicas shows that each tenant is served by one of two replicas, at any time: while both
// run, after one is cut off from the server, after it is back, and after one has stopped.
func TestReplicas(t *testing.T) {
	t.Parallel()
	p, r := exporter(t), newRecord()
	var names []string
	tenants := map[string]*kcptest.Cluster{}
	add := func() *kcptest.Cluster {
		c := bound(t, p)
		names = append(names, c.Name)
		tenants[c.Name] = c
		return c
	}
	for range 24 { // all of them in one share: 1 in 2^23 runs
		add()
	}
	slices.Sort(names)
	replicas := func(name string) *provider.Replicas {
		return &provider.Replicas{Name: name, LeaseDuration: 6 * time.Second}
	}
	a := run(t, p.Config, r, replicas("a"))
	r.awaitEngaged(t, names...)
	b := run(t, p.Config, r, replicas("b"))
	split := func() bool {
		return len(r.of("a")) > 0 && len(r.of("b")) > 0 && len(r.of("")) == len(names)
	}
	until(t, "both replicas serve tenants", split)
	for _, c := range tenants {
		c.Apply(widget("w", "1"))
	}
	for _, c := range tenants {
		c.Wait(widgets, "default", "w", finished)
	}

	a.cut.Store(true)
	var lost string
	until(t, "a serves a tenant", func() bool {
		names := r.of("a")
		lost = strings.Join(names[:min(len(names), 1)], "")
		return lost != ""
	})
	client := r.cluster(lost).GetClient()
	until(t, "b serves all tenants", func() bool { return len(r.of("b")) == len(names) })
	if len(r.of("a")) > 0 {
		t.Errorf("a still serves %v", r.of("a"))
	}
	tenants[lost].Apply(widget("x", "1"))
	tenants[lost].Wait(widgets, "default", "x", finished)

	a.cut.Store(false)
	if err := client.Delete(t.Context(), &Widget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}); !errors.Is(err, provider.ErrDisengaged) {
		t.Errorf("a write of a replica that was cut off: %v", err)
	}
	until(t, "both replicas serve tenants again", split)
	b.stop()
	until(t, "a serves all tenants", func() bool { return len(r.of("a")) == len(names) })
	late := add()
	late.Apply(widget("w", "1"))
	late.Wait(widgets, "default", "w", finished)
	r.check(t)
}

// TestReplicasRefuse shows a lease duration that is too short.
func TestReplicasRefuse(t *testing.T) {
	t.Parallel()
	_, err := provider.New(exporter(t).Config, provider.Options{Export: "widgets", Replicas: &provider.Replicas{LeaseDuration: time.Millisecond}})
	if err == nil || !strings.Contains(err.Error(), "at least 1s") {
		t.Errorf("%v", err)
	}
}
