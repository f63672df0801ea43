//go:build unix

package physical

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/polymorphichelpers"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// follow calls see with each change of a Deployment at a server, until stop is called.
func follow(t *testing.T, at kubernetes.Interface, see func(watch.EventType, *appsv1.Deployment)) (stop func()) {
	t.Helper()
	all := at.AppsV1().Deployments("")
	list, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := all.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for e := range changes.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok {
				see(e.Type, d)
			}
		}
		if ctx.Err() == nil {
			t.Error("the watch of Deployments ended")
		}
	})
	return sync.OnceFunc(func() { cancel(); work.Wait() })
}

// updatesWhileStuck updates a Deployment while one of its two clusters is stuck: its controllers do nothing, or it does
// not answer.
func (s *tenant) updatesWhileStuck(t *testing.T) {
	s.place(t, toleration(600)) // longer than this test
	s.create(t, "stuck", 10)
	s.rolledOut(t, "stuck")
	s.split(t, "stuck", "east 5/5, west 5/5")
	var unseen atomic.Int64 // the first generation that not all clusters can have seen
	unseen.Store(math.MaxInt64)
	stop := follow(t, s, func(_ watch.EventType, d *appsv1.Deployment) {
		switch {
		case d.Name != "stuck":
		case d.Status.AvailableReplicas < 8: // maxUnavailable is 25 %
			t.Errorf("only %d replicas are available", d.Status.AvailableReplicas)
		case d.Status.ObservedGeneration >= unseen.Load():
			t.Errorf("generation %d is observed, and a cluster has not seen generation %d", d.Status.ObservedGeneration, unseen.Load())
		}
	})
	defer stop()
	t.Run("controllers that do nothing", func(t *testing.T) { s.haltsControllers(t, &unseen) })
	t.Run("a cluster that does not answer", func(t *testing.T) { s.haltsCluster(t, &unseen) })
	stop()
	s.remove(t, "stuck")
	s.place(t, `{"spec":{"tolerations":null}}`)
}

// haltsControllers stops the controller manager of a cluster: the API server takes a new template, and pods stay.
func (s *tenant) haltsControllers(t *testing.T, unseen *atomic.Int64) {
	east := s.clusters["east"]
	halt := func(signal syscall.Signal) {
		if err := syscall.Kill(east.Controllers.PID(), signal); err != nil {
			t.Error(err)
		}
	}
	halt(syscall.SIGSTOP)
	defer halt(syscall.SIGCONT)
	s.updatesHalf(t, "nginx:2", unseen)
	if d := east.only(t, "stuck"); d.Spec.Template.Spec.Containers[0].Image != "nginx:2" || d.Status.ObservedGeneration >= d.Generation {
		t.Errorf("the stuck cluster has %+v", d)
	}
	s.waitsFor(t, "east", "Waiting: its controllers have not seen the latest change", "waiting: it has not applied the latest change, or its controllers have not seen it")
	s.undo(t, "stuck")
	s.updatedHalf(t, "nginx:1")
	unseen.Store(math.MaxInt64)
	halt(syscall.SIGCONT)
	s.runs(t, "nginx:1")
}

// haltsCluster stops the API server of a cluster for less than the toleration.
func (s *tenant) haltsCluster(t *testing.T, unseen *atomic.Int64) {
	east, parts, before := s.clusters["east"], s.actual(t)["stuck"], map[string]string{}
	for name, c := range s.clusters {
		before[name] = string(c.only(t, "stuck").UID)
	}
	freeze(t, east)
	s.updatesHalf(t, "nginx:3", unseen)
	s.condition(t, "east", workload.APIServerHealthy, func(of *workload.SyncTargetStatus) bool { return of.UnreachableSince != nil })
	s.waitsFor(t, "east", "Waiting: it has not applied the latest change", "Unreachable: it does not answer")
	s.patch(t, "stuck", image("nginx:4"))
	s.updatedHalf(t, "nginx:4")
	if now := s.actual(t)["stuck"]; now != parts {
		t.Errorf("the parts were %s, and are %s", parts, now)
	}
	unseen.Store(math.MaxInt64)
	east.signal(t, syscall.SIGCONT)
	s.runs(t, "nginx:4")
	for name, c := range s.clusters {
		if uid := string(c.only(t, "stuck").UID); uid != before[name] {
			t.Errorf("the copy at %s is another one", name)
		}
	}
	if now := s.actual(t)["stuck"]; now != parts {
		t.Errorf("the parts were %s, and are %s at the end", parts, now)
	}
}

func image(name string) string {
	return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":%q}]}}}}`, name)
}

// updatesHalf sets the image while east is stuck.
func (s *tenant) updatesHalf(t *testing.T, name string, unseen *atomic.Int64) {
	t.Helper()
	d, err := s.AppsV1().Deployments("default").Get(t.Context(), "stuck", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	unseen.Store(d.Generation + 1)
	s.patch(t, "stuck", image(name))
	s.updatedHalf(t, name)
}

// updatedHalf waits until west runs an image, and expects that the rollout goes on.
func (s *tenant) updatedHalf(t *testing.T, name string) {
	t.Helper()
	eventually(t, "west runs "+name, func() error {
		c := s.clusters["west"].only(t, "stuck")
		if got := c.Spec.Template.Spec.Containers[0].Image; got != name {
			return fmt.Errorf("its image is %s", got)
		}
		if err := rollout(c); err != nil {
			return err
		}
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), "stuck", metav1.GetOptions{})
		if err == nil && (d.Status.UpdatedReplicas != 5 || d.Status.Replicas != 10 || d.Status.AvailableReplicas != 10) {
			err = fmt.Errorf("status %+v", d.Status)
		}
		if err == nil && rollout(d) == nil {
			t.Errorf("kubectl rollout status ends, and the status is %+v", d.Status)
		}
		return err
	})
}

// waitsFor expects that commands say which cluster the Deployment waits for, and that it does not wait for another.
func (s *tenant) waitsFor(t *testing.T, cluster, got, explained string) {
	t.Helper()
	for command, want := range map[string]string{"get": got, "explain": explained} {
		eventually(t, command, func() error {
			out := must(t, "workload", command, "deployment/stuck", "-w", ":root:"+s.name)
			for line := range strings.Lines(out) {
				row := strings.Fields(line) // of a table with the Location and the cluster first
				if is, says := len(row) > 1 && row[0] == "default" && row[1] == cluster, strings.Contains(line, want); is != says {
					return errors.New(out)
				}
			}
			return nil
		})
	}
}

// undo does what "kubectl rollout undo" does, once there are two revisions.
func (s *tenant) undo(t *testing.T, name string) {
	t.Helper()
	by, err := polymorphichelpers.RollbackerFor(appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), s)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "undo", func() error {
		d, err := s.AppsV1().Deployments("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			_, err = by.Rollback(d, nil, 0, 0)
		}
		return err
	})
}

// runs waits for the end of the rollout, and expects that all pods have an image.
func (s *tenant) runs(t *testing.T, name string) {
	t.Helper()
	s.rolledOut(t, "stuck")
	for at, c := range s.clusters {
		d := c.only(t, "stuck")
		eventually(t, "pods", func() error {
			pods, err := c.CoreV1().Pods(d.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=stuck"})
			if err != nil {
				return err
			}
			var images []string
			for _, p := range pods.Items {
				if p.DeletionTimestamp == nil {
					images = append(images, p.Spec.Containers[0].Image)
				}
			}
			if strings.Join(images, " ") != strings.TrimSpace(strings.Repeat(name+" ", 5)) {
				return fmt.Errorf("the pods at %s have %v, want 5 with %s", at, images, name)
			}
			return nil
		})
	}
}
