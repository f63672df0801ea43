package physical

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// fences loses the cluster of a StatefulSet, which begins elsewhere only after an operator says that it is
// stopped.
func (s *tenant) fences(t *testing.T) {
	s.place(t, toleration(1))
	s.statefulSet(t, "fenced")
	at := s.setRolledOut(t, "fenced")
	other := map[string]string{"east": "west", "west": "east"}[at]
	if _, err := kubectl(t, "workload", "fence", at, "-w", ":root:compute"); err == nil || !strings.Contains(err.Error(), "answers") {
		t.Errorf("fence of a cluster that answers: %v", err)
	}
	freeze(t, s.clusters[at])
	s.setReason(t, "fenced", "NotFenced")
	if sets := s.clusters[other].sets(t, "fenced"); len(sets) > 0 {
		t.Errorf("it runs at %s", other)
	}
	if out := must(t, "workload", "explain", "statefulset/fenced", "-w", ":root:"+s.name); !strings.Contains(out, "it may still run there") {
		t.Error(out)
	}
	must(t, "workload", "fence", at, "-w", ":root:compute")
	eventually(t, "it begins elsewhere", func() error {
		if sets := s.clusters[other].sets(t, "fenced"); len(sets) != 1 || sets[0].Status.ReadyReplicas != 2 {
			return fmt.Errorf("%d at %s", len(sets), other)
		}
		return nil
	})
	if out := must(t, "workload", "describe", at, "-w", ":root:compute"); !strings.Contains(out, "Fenced:") || !strings.Contains(out, "an operator says") {
		t.Error(out)
	}
	s.clusters[at].signal(t, syscall.SIGCONT)
	s.condition(t, at, workload.Fenced, func(of *workload.SyncTargetStatus) bool {
		return of.Conditions.IsTrue(conditions.Ready) && !of.Conditions.IsTrue(workload.Fenced)
	})
	if sets := s.clusters[at].sets(t, "fenced"); len(sets) > 0 {
		t.Errorf("%s still has it, and is not fenced", at)
	}
	if got := s.setRolledOut(t, "fenced"); got != other {
		t.Errorf("it is at %s", got)
	}
	if err := s.AppsV1().StatefulSets("default").Delete(t.Context(), "fenced", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// freeze makes a cluster hang until the end of the test, or until it gets SIGCONT.
func freeze(t *testing.T, c *cluster) {
	t.Helper()
	c.signal(t, syscall.SIGSTOP)
	t.Cleanup(func() { c.signal(t, syscall.SIGCONT) })
}

// sets returns the StatefulSets with a name at a physical cluster.
func (c *cluster) sets(t *testing.T, name string) []appsv1.StatefulSet {
	t.Helper()
	list, err := c.AppsV1().StatefulSets("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// setReason waits until a StatefulSet says why it is not placed.
func (s *tenant) setReason(t *testing.T, name, reason string) {
	t.Helper()
	eventually(t, reason, func() error {
		o, err := s.AppsV1().StatefulSets("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(o.Status.Conditions), reason) {
			err = fmt.Errorf("%v", o.Status.Conditions)
		}
		return err
	})
}

// TestLeaseFencing cuts an agent off from the server: it stops a StatefulSet by itself, which then begins
// elsewhere.
func TestLeaseFencing(t *testing.T) {
	long(t)
	w := newWorld(t, "east", "west")
	must(t, "ws", "create", ":root:compute")
	wires := map[string]*wire{}
	agents := map[string]*installed{}
	for name := range w.clusters {
		i := w.sync(t, name, "compute")
		i.stop()
		wires[name], agents[name] = newWire(t, w.listen), i
		i.bootstrap = []byte(strings.ReplaceAll(string(i.bootstrap), w.listen, wires[name].addr()))
		i.start(t)
	}
	s := w.shop(t, "shop", "compute")
	s.place(t, toleration(1))
	s.place(t, `{"spec":{"failover":{"leaseFencing":true}}}`)
	s.statefulSet(t, "one")
	at := s.setRolledOut(t, "one")
	other := map[string]string{"east": "west", "west": "east"}[at]
	ctx, end := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer end()
	watching.Go(func() { s.neverTwice(ctx, t, "one") })
	wires[at].set(true)
	eventually(t, "the agent stops it", func() error {
		if sets := s.clusters[at].sets(t, "one"); len(sets) != 1 || *sets[0].Spec.Replicas != 0 || sets[0].Status.Replicas != 0 {
			return fmt.Errorf("%d, %+v", len(sets), sets)
		}
		return nil
	})
	eventually(t, "it begins elsewhere", func() error {
		if sets := s.clusters[other].sets(t, "one"); len(sets) != 1 || sets[0].Status.ReadyReplicas != 2 {
			return fmt.Errorf("%+v", sets)
		}
		return nil
	})
	wires[at].set(false)
	eventually(t, "the old one is removed", func() error {
		if sets := s.clusters[at].sets(t, "one"); len(sets) != 0 {
			return fmt.Errorf("%+v", sets)
		}
		return nil
	})
	if got := s.setRolledOut(t, "one"); got != other {
		t.Errorf("it is at %s", got)
	}
	// A server that is away for long stops it. It goes on where it was.
	w.stopServer(t)
	eventually(t, "without a server it is stopped", func() error {
		if sets := s.clusters[other].sets(t, "one"); len(sets) != 1 || sets[0].Status.Replicas != 0 {
			return fmt.Errorf("%+v", sets)
		}
		return nil
	})
	agents[other].stop() // one that begins without a server keeps it stopped
	agents[other].start(t)
	w.startServer(t)
	s.Clientset, s.dynamic = s.typed(t), s.in(t, s.name)
	eventually(t, "it goes on", func() error {
		if sets := s.clusters[other].sets(t, "one"); len(sets) != 1 || sets[0].Status.ReadyReplicas != 2 {
			return fmt.Errorf("%+v", sets)
		}
		return nil
	})
	if got := s.setRolledOut(t, "one"); got != other {
		t.Errorf("it is at %s", got)
	}
}

// neverTwice fails the test if pods of a StatefulSet run at two clusters.
func (s *tenant) neverTwice(ctx context.Context, t *testing.T, name string) {
	for ctx.Err() == nil {
		running := 0
		for _, c := range s.clusters {
			pods, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
			if err == nil && len(pods.Items) > 0 {
				running++
			}
		}
		if running > 1 {
			t.Errorf("pods of %s run at %d clusters", name, running)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
