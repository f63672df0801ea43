//go:build unix

package physical

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
)

// TestFullCluster fills a physical cluster, and expects that what does not fit goes to another one once there is one.
func TestFullCluster(t *testing.T) {
	long(t)
	const room = 10 // half of the maximum, for one tenant
	w := newWorld(t, "east", "west")
	w.stopServer(t)
	w.objects = 2 * room
	w.startServer(t)
	w.compute(t, "compute", "east", "west")
	east := map[string]any{"matchLabels": map[string]any{"region": "east"}}
	l := object("scheduling.kcp.io/v1alpha1", "Location", "east", map[string]any{"instanceSelector": east})
	l.SetLabels(map[string]string{"region": "east"})
	if _, err := w.in(t, "compute").Resource(scheduling.GroupVersion.WithResource("locations")).Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := w.shop(t, "shop", "compute")
	s.place(t, `{"spec":{"locationSelectors":[{"matchLabels":{"region":"east"}}]}}`)
	for i := range room + 2 {
		if i == room { // what exists is counted
			for n := range room {
				s.rolledOut(t, fmt.Sprint("web-", n))
			}
		}
		s.create(t, fmt.Sprint("web-", i), 1)
	}
	eventually(t, "two of them say that the cluster is full", func() error {
		all, err := s.AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		runs, full := 0, 0
		for _, d := range all.Items {
			runs += int(d.Status.AvailableReplicas)
			for _, c := range d.Status.Conditions {
				if c.Type == appsv1.DeploymentReplicaFailure && c.Reason == "Full" {
					full++
				}
			}
		}
		if runs != room || full != 2 {
			return fmt.Errorf("%d run, and %d do not fit", runs, full)
		}
		return nil
	})
	s.place(t, `{"spec":{"locationSelectors":null}}`)
	for i := range room + 2 {
		s.rolledOut(t, fmt.Sprint("web-", i))
	}
	for name, want := range map[string]int{"east": room, "west": 2} { // what runs stays
		all, err := w.clusters[name].AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) != want {
			t.Errorf("%s has %d Deployments, %v; want %d", name, len(all.Items), err, want)
		}
	}
	s.create(t, "new", 4)
	s.rolledOut(t, "new")
	s.split(t, "new", "west 4/4")
	labels := map[string]string{"app": "db"}
	db := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: deployment("db", 1).Spec.Template}}
	if _, err := s.AppsV1().StatefulSets("default").Create(t.Context(), db, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the StatefulSet runs", func() error {
		of, err := s.AppsV1().StatefulSets("default").Get(t.Context(), "db", metav1.GetOptions{})
		if err == nil && of.Status.ReadyReplicas != 1 {
			err = fmt.Errorf("status %+v", of.Status)
		}
		return err
	})
}
