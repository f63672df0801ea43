//go:build unix

package physical

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
)

const (
	// crowd is how many Deployments run when a cluster is killed.
	crowd = 200
	// deciders is how many workloads the scheduler decides about at a time.
	deciders = 8
	// untilAll is a limit for something that happens to all of them.
	untilAll = 8 * time.Minute
)

// TestKilledCluster kills all processes of one of three clusters while 200 Deployments run, and starts them again.
func TestKilledCluster(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "north", "west")
	w.compute(t, "compute", "east", "north", "west")
	s := w.shop(t, "shop", "compute")
	s.place(t, toleration(2))
	began := time.Now()
	if err := side(crowd, func(i int) error {
		_, err := s.AppsV1().Deployments("default").Create(t.Context(), deployment(fmt.Sprintf("web-%03d", i), int32(2+i%2)), metav1.CreateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.complete(t, untilAll)
	t.Logf("%d Deployments were available %v after the first was created", crowd, time.Since(began).Round(time.Second))
	before := w.layout(t, "east", "north", "west")
	if n := len(before["north"]); n < crowd/2 {
		t.Fatalf("only %d Deployments have a part at the cluster that is killed", n)
	}
	t.Run("it is killed", func(t *testing.T) { s.outlivesKill(t, before) })
	t.Run("it starts again", func(t *testing.T) { s.outlivesReturn(t) })
}

// outlivesKill kills a cluster. Its replicas, and no others, begin elsewhere, at the rate of evictions.
func (s *tenant) outlivesKill(t *testing.T, before layout) {
	for _, name := range []string{"east", "west"} {
		stop := follow(t, s.clusters[name], func(of watch.EventType, d *appsv1.Deployment) { // I3
			if p := before[name][d.Name]; of == watch.Deleted || d.DeletionTimestamp != nil || *d.Spec.Replicas < p.replicas {
				t.Errorf("%s at %s had %+v, and is %s with %d replicas", d.Name, name, p, of, *d.Spec.Replicas)
			}
		})
		defer stop()
	}
	began := time.Now()
	s.clusters["north"].Kill()
	first, last := s.watchEvictions(t, began, len(before["north"]))
	s.complete(t, untilAll)
	all := time.Since(began)
	moved := before.replaced(t, "north", s.layout(t, "east", "west"))
	t.Logf("%d replicas of %d Deployments were replaced: the first began to leave %v after the cluster was killed, the last %v, and all were available after %v",
		moved, len(before["north"]), first.Round(time.Second), last.Round(time.Second), all.Round(time.Second))
	eventually(t, "nothing is left to replace", func() error {
		for name, parts := range s.actual(t) {
			if strings.Contains(parts, "north Active") || strings.Contains(parts, "north Evicting") {
				return fmt.Errorf("%s: %s", name, parts)
			}
		}
		return nil
	})
}

// watchEvictions waits until all workloads have begun to leave north, and returns when the first and the last had. It
// expects that no more begin than the rate allows, and that the sum of replicas is what is wanted (I1).
func (s *tenant) watchEvictions(t *testing.T, began time.Time, parts int) (first, last time.Duration) {
	t.Helper()
	rate, none, limited := place.Normal(), began, false
	within(t, untilAll, "all leave the cluster", func() error {
		asked := time.Now()
		begun, waits := 0, ""
		for name, a := range s.assignments(t) {
			active := int32(0)
			for _, p := range a.Targets {
				switch {
				case p.Phase == workload.Active && p.Key == "north":
					waits = name
					active += *p.Replicas
				case p.Phase == workload.Active:
					active += *p.Replicas
				case p.Key == "north":
					begun++
				default:
					t.Errorf("%s leaves %s", name, p.Key)
				}
			}
			if a.Reason == "" && active != *a.Replicas {
				t.Errorf("%s wants %d replicas, and %+v has %d", name, *a.Replicas, a.Targets, active)
			}
		}
		if begun == 0 {
			none = asked
			return errors.New("none has begun to leave")
		}
		if most := rate.Burst + rate.PerSecond*time.Since(none).Seconds() + deciders; float64(begun) > most { // a decider may have had its permit before
			t.Errorf("%d workloads began to leave within %v", begun, time.Since(none))
		}
		if first == 0 {
			first = time.Since(began)
		}
		if last = time.Since(began); waits == "" && begun == parts {
			return nil
		}
		if !limited && waits != "" {
			out := must(t, "workload", "explain", "deployment/"+waits, "-w", ":root:shop")
			limited = strings.Contains(out, "RateLimited: it does not answer; the workload leaves when it is its turn")
		}
		return fmt.Errorf("%d of %d have begun to leave", begun, parts)
	})
	if !limited {
		t.Error("no workload says that it waits for its turn")
	}
	return first, last
}

// outlivesReturn starts the cluster again. It loses its old parts, and nothing else changes.
func (s *tenant) outlivesReturn(t *testing.T) {
	before, began := s.layout(t, "east", "west"), time.Now()
	if err := s.clusters["north"].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready := time.Since(began)
	within(t, untilAll, "the old parts are removed", func() error {
		if n := len(s.layout(t, "north")["north"]); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		for name, parts := range s.actual(t) {
			if strings.Contains(parts, "north") {
				return fmt.Errorf("%s: %s", name, parts)
			}
		}
		return nil
	})
	t.Logf("the cluster was ready after %v, and its old parts were removed after %v", ready.Round(time.Second), time.Since(began).Round(time.Second))
	s.complete(t, untilAll)
	before.unchanged(t, s.layout(t, "east", "west"))
	again := time.Now()
	s.create(t, "late", 3)
	s.rolledOut(t, "late")
	t.Logf("a new Deployment was available after %v", time.Since(again).Round(time.Second))
	if n := s.layout(t, "north")["north"]["late"].replicas; n != 1 {
		t.Errorf("the cluster that is back has %d of 3 new replicas", n)
	}
}
