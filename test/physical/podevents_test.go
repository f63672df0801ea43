//go:build unix

package physical

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/test/stock"
)

// podEvent records an event of a pod at a physical cluster, as a kubelet does.
func (c *cluster) podEvent(t *testing.T, p *corev1.Pod, reason, message string) {
	t.Helper()
	now := metav1.Now()
	_, err := c.CoreV1().Events(p.Namespace).Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: p.Name + ".", Annotations: map[string]string{"agent-of-node": stock.Node}},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, FieldPath: "spec.containers{web}"},
		Reason:         reason, Message: message, Type: corev1.EventTypeNormal, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "kubelet", Host: stock.Node}, ReportingController: "kubelet", ReportingInstance: stock.Node,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// seesEvents expects the events of pods and of copies in the workspace.
func (s *tenant) seesEvents(t *testing.T) {
	east := s.clusters["east"]
	there, err := east.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(there.Items) == 0 {
		t.Fatalf("pods: %v", err)
	}
	pod := &there.Items[0]
	east.podEvent(t, pod, "Scheduled", fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, stock.Node))
	east.podEvent(t, pod, "Pulled", fmt.Sprintf("Pulled from https://%s:5000/x on node %s in 1.5s", stock.NodeAddress, stock.Node))
	own, err := s.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.tellsNothing(t, list.Items)
	for what, of := range map[string]func(corev1.Event) bool{
		"of the pod": func(e corev1.Event) bool {
			return e.Reason == "Scheduled" && e.Message == "Successfully assigned default/"+pod.Name+" to (hidden)" && e.InvolvedObject.Name == pod.Name && e.InvolvedObject.UID == pod.UID && e.InvolvedObject.Namespace == "default"
		},
		"of a container": func(e corev1.Event) bool {
			return e.Reason == "Pulled" && e.Message == "Pulled from (hidden) on node (hidden) in 1.5s" && e.Source.Host == "default" && e.Labels["workload.kcp.io/location"] == "default"
		},
		"of the Deployment": func(e corev1.Event) bool {
			return e.Reason == "ScalingReplicaSet" && e.InvolvedObject.Kind == "Deployment" && e.InvolvedObject.UID == own.UID
		},
	} {
		i := slices.IndexFunc(list.Items, of)
		if i < 0 {
			t.Errorf("no event %s in %v", what, list.Items)
			continue
		}
		one, err := s.CoreV1().Events("default").Get(t.Context(), list.Items[i].Name, metav1.GetOptions{})
		if err != nil || one.UID != list.Items[i].UID {
			t.Errorf("get: %v", err)
		}
		if err := s.CoreV1().Events("default").Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("deletion of an event that is not stored: %v", err)
		}
	}
	for selector, want := range map[string]int{
		"involvedObject.kind=Pod,involvedObject.name=" + pod.Name + ",involvedObject.namespace=default,involvedObject.uid=" + string(pod.UID): 2,
		"involvedObject.kind=Pod,reason=Pulled,type=Normal,source=kubelet":                                                                    1,
		"involvedObject.namespace=" + pod.Namespace:                                                                                           0,
		"involvedObject.uid=none": 0,
		"reason=None":             0,
	} {
		got, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(got.Items) != want {
			t.Errorf("%s: %d events, %v; want %d", selector, len(got.Items), err, want)
		}
	}
	newer, err := s.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(newer.Items) < len(list.Items) {
		t.Errorf("events.k8s.io: %d, %v", len(newer.Items), err)
	}
	other := s.enter(t, "neighbour")
	if got, err := other.CoreV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil || slices.ContainsFunc(got.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == pod.Name }) {
		t.Errorf("a neighbour: %v", err)
	}
	s.describes(t, pod)
	s.watchesEvents(t, pod, list.ResourceVersion)
}

// describes uses "kubectl describe" and "kubectl events".
func (s *tenant) describes(t *testing.T, pod *corev1.Pod) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"describe", "pod", pod.Name}, []string{"Successfully assigned default/" + pod.Name + " to (hidden)", "Pulled from (hidden)"}},
		{[]string{"describe", "deployment", "web"}, []string{"ScalingReplicaSet"}},
		{[]string{"events", "--for", "pod/" + pod.Name}, []string{"Scheduled", "Pulled"}},
		{[]string{"get", "events"}, []string{"pod/" + pod.Name, "deployment/web"}},
	} {
		out, err := exec.CommandContext(t.Context(), program(t), append([]string{"--server=" + client.Cluster(s.config, "root:"+s.name).Host}, c.args...)...).CombinedOutput()
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("kubectl %v: %v, no %q in\n%s", c.args, err, want, out)
			}
		}
	}
}

// watchesEvents expects the events of both sides in one watch, also after it is resumed.
func (s *tenant) watchesEvents(t *testing.T, pod *corev1.Pod, version string) {
	record := func(name string) {
		_, err := s.CoreV1().Events("default").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: "Deployment", Namespace: "default", Name: "web"}, Reason: name, Message: name}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for round := range 2 {
		w, err := s.CoreV1().Events("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{fmt.Sprint("Far", round): true, fmt.Sprint("near", round): true}
		s.clusters["east"].podEvent(t, pod, fmt.Sprint("Far", round), "far")
		record(fmt.Sprint("near", round))
		late := time.After(patience)
		for len(want) > 0 {
			select {
			case e, ok := <-w.ResultChan():
				of, is := e.Object.(*corev1.Event)
				if !ok || !is || e.Type == watch.Error {
					t.Fatalf("the watch ends: %v", e.Object)
				}
				if round == 1 && (of.Reason == "Scheduled" || of.Reason == "Far0") && strings.Contains(version, "-") {
					t.Errorf("resumed, and %s again", of.Reason)
				}
				delete(want, of.Reason)
			case <-late:
				t.Fatalf("missing: %v", want)
			}
		}
		w.Stop()
		list, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		version = list.ResourceVersion
	}
	if err := s.CoreV1().Events("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if left, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Far1"}); err != nil || len(left.Items) != 1 {
		t.Errorf("a deletion of stored events: %d are left, %v", len(left.Items), err)
	}
}

// evicts pods with and without a disruption budget that forbids it.
func (s *tenant) evicts(t *testing.T) {
	all, _ := s.pods(t, metav1.ListOptions{LabelSelector: "app=web"})
	evict := func(of *corev1.Pod) error {
		return s.CoreV1().Pods("default").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: of.Name, Namespace: "default"}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &of.UID}}})
	}
	most := intstr.FromInt32(0)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	if _, err := s.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the budget refuses", func() error {
		for _, c := range s.clusters {
			have, err := c.PolicyV1().PodDisruptionBudgets("").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(have.Items) != 1 || have.Items[0].Status.ObservedGeneration != have.Items[0].Generation || have.Items[0].Status.CurrentHealthy != 2 {
				return fmt.Errorf("budgets: %v, %w", have, err)
			}
		}
		return nil
	})
	err := evict(&all[0])
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Errorf("against the budget: %v", err)
	}
	s.tellsNothing(t, fmt.Sprint(err))
	if err := s.PolicyV1().PodDisruptionBudgets("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stale := all[0]
	stale.UID = "another"
	if err := evict(&stale); !apierrors.IsConflict(err) {
		t.Errorf("another pod: %v", err)
	}
	eventually(t, "eviction", func() error {
		if err := evict(&all[0]); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		now, _ := s.pods(t, metav1.ListOptions{LabelSelector: "app=web"})
		if len(now) != 4 || slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.UID == all[0].UID }) {
			return errors.New("the pod is not replaced")
		}
		return nil
	})
	s.rolledOut(t, "web")
}

// debugs adds an ephemeral container to a pod, and is refused the proxy.
func (s *tenant) debugs(t *testing.T) {
	all, _ := s.pods(t, metav1.ListOptions{LabelSelector: "app=web"})
	name := all[0].Name
	args := []string{"--server=" + client.Cluster(s.config, "root:"+s.name).Host, "debug", name, "--image=busybox", "--container=look", "--attach=false", "--", "true"}
	if out, err := exec.CommandContext(t.Context(), program(t), args...).CombinedOutput(); err != nil {
		t.Fatalf("kubectl debug: %v\n%s", err, out)
	}
	one, err := s.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || len(one.Spec.EphemeralContainers) != 1 || one.Spec.EphemeralContainers[0].Name != "look" {
		t.Errorf("ephemeral containers: %v, %v", one.Spec.EphemeralContainers, err)
	}
	s.tellsNothing(t, one)
	one.Spec.EphemeralContainers[0].Image = "another"
	if _, err := s.CoreV1().Pods("default").UpdateEphemeralContainers(t.Context(), name, one, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a changed one: %v", err)
	} else {
		s.tellsNothing(t, err.Error())
	}
	one.ResourceVersion = all[0].ResourceVersion
	if _, err := s.CoreV1().Pods("default").UpdateEphemeralContainers(t.Context(), name, one, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an old one: %v", err)
	}
	err = s.CoreV1().RESTClient().Get().Namespace("default").Resource("pods").Name(name).SubResource("proxy").Suffix("x").Do(t.Context()).Error()
	if !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), "port-forward") {
		t.Errorf("the proxy: %v", err)
	}
}

// hasNoTokens runs pods whose template asks for a token of the physical cluster.
func (s *tenant) hasNoTokens(t *testing.T) {
	d := deployment("token", 2)
	d.Spec.Template.Spec.AutomountServiceAccountToken = new(true)
	projected := d.DeepCopy()
	projected.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}}}
	if _, err := s.AppsV1().Deployments("default").Create(t.Context(), projected, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "get no credentials of these") {
		t.Errorf("a projected token: %v", err)
	}
	if _, err := s.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.rolledOut(t, "token")
	projected.ResourceVersion = ""
	if _, err := s.AppsV1().Deployments("default").Update(t.Context(), projected, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an update with a projected token: %v", err)
	}
	for name, c := range s.clusters {
		all, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=token"})
		if err != nil || len(all.Items) != 1 {
			t.Fatalf("%s: %d pods, %v", name, len(all.Items), err)
		}
		if p := all.Items[0].Spec; len(p.Volumes) > 0 || len(p.Containers[0].VolumeMounts) > 0 {
			t.Errorf("%s: the pod has the volumes %v", name, p.Volumes)
		}
	}
	s.remove(t, "token")
}
