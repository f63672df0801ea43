//go:build unix

package physical

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/test/stock"
)

// A measuring gives a physical cluster the Metrics API. A definition plays the part of a metrics server.
type measuring struct {
	t *testing.T
	d dynamic.Interface
}

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	podMetrics  = schema.GroupVersionResource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: "pods"}
)

func measures(t *testing.T, of *cluster) measuring {
	t.Helper()
	m := measuring{t, dynamicFor(t, of.Config(stock.AdminToken))}
	if err := m.apply(definitions, "", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"pods.metrics.k8s.io","annotations":{"api-approved.kubernetes.io":"unapproved, for a test"}},
		"spec":{"group":"metrics.k8s.io","scope":"Namespaced","names":{"plural":"pods","kind":"PodMetrics","listKind":"PodMetricsList"},
		"versions":[{"name":"v1beta1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`); err != nil {
		t.Fatal(err)
	}
	return m
}

// remove takes the Metrics API away.
func (m measuring) remove() {
	if err := m.d.Resource(definitions).Delete(m.t.Context(), "pods.metrics.k8s.io", metav1.DeleteOptions{}); err != nil {
		m.t.Error(err)
	}
	eventually(m.t, "no Metrics API", func() error {
		_, err := m.d.Resource(definitions).Get(m.t.Context(), "pods.metrics.k8s.io", metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (m measuring) apply(of schema.GroupVersionResource, namespace, text string) error {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		return err
	}
	_, err := m.d.Resource(of).Namespace(namespace).Apply(m.t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "metrics", Force: true})
	return err
}

// set sets the usage of a pod.
func (m measuring) set(p corev1.Pod, container, cpu, memory string) {
	eventually(m.t, "metrics of a pod", func() error {
		return m.apply(podMetrics, p.Namespace, fmt.Sprintf(`{"apiVersion":"metrics.k8s.io/v1beta1","kind":"PodMetrics",
			"metadata":{"name":%q,"labels":{"agent-of-node":"x","app":%q}},"timestamp":%q,"window":"1s","containers":[{"name":%q,"usage":{"cpu":%q,"memory":%q}}]}`,
			p.Name, p.Labels["app"], time.Now().Add(time.Minute).UTC().Format(time.RFC3339), container, cpu, memory))
	})
}

// autoscalers lets a HorizontalPodAutoscaler scale a Deployment that is divided.
func (s *tenant) autoscalers(t *testing.T) {
	of := map[string]measuring{}
	for name, c := range s.clusters {
		of[name] = measures(t, c)
		defer of[name].remove()
	}
	d := deployment("busy", 2)
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	if _, err := s.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.rolledOut(t, "busy")
	scalers := s.AutoscalingV2().HorizontalPodAutoscalers("default")
	cpu := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))}}}
	spec := autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: new(int32(1)), MaxReplicas: 4, Metrics: []autoscalingv2.MetricSpec{cpu},
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "busy"},
		Behavior:       &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))}}}
	if _, err := scalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "busy"}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.scaledTo(t, of, "100m", 4)
	t.Run("a cluster that does not answer", func(t *testing.T) { s.keepsScale(t, of) })
	s.scaledTo(t, of, "10m", 1)
	s.recorded(t, "SuccessfulRescale")
	t.Run("the status", func(t *testing.T) {
		got, err := scalers.Get(t.Context(), "busy", metav1.GetOptions{})
		if err != nil || got.Status.CurrentReplicas == 0 || len(got.Status.CurrentMetrics) != 1 || strings.Contains(fmt.Sprint(got.Status), s.logical(t)) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("a target that does not exist", func(t *testing.T) {
		next := *spec.DeepCopy()
		next.ScaleTargetRef.Name = "nothing"
		s.unscaled(t, "lost", next, `deployments.apps "nothing" not found`)
		next.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "nowhere.example.com/v1", Kind: "Nothing", Name: "nothing"}
		s.unscaled(t, "unknown", next, "could not find the requested resource")
	})
	t.Run("two for the same pods", func(t *testing.T) { s.unscaled(t, "second", spec, "controlled by multiple HPAs") })
	t.Run("too many metrics", func(t *testing.T) {
		next := *spec.DeepCopy()
		for len(next.Metrics) < 21 {
			next.Metrics = append(next.Metrics, cpu)
		}
		_, err := scalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Spec: next}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "more than 20 items") {
			t.Error(err)
		}
	})
	if err := scalers.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	t.Run("metrics that are not served", func(t *testing.T) {
		next := *spec.DeepCopy()
		next.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse("1"))}}}}
		s.unscaled(t, "external", next, "use the type Resource or ContainerResource")
	})
	if err := scalers.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if err := s.AppsV1().Deployments("default").Delete(t.Context(), "busy", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	for _, c := range s.clusters {
		eventually(t, "its pods leave", func() error {
			left, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=busy"})
			if err == nil && len(left.Items) > 0 {
				err = fmt.Errorf("%d pods", len(left.Items))
			}
			return err
		})
	}
}

// keepsScale stops a physical cluster. The pods of the other one alone would be less than there are.
func (s *tenant) keepsScale(t *testing.T, of map[string]measuring) {
	s.clusters["east"].signal(t, syscall.SIGSTOP)
	defer s.clusters["east"].signal(t, syscall.SIGCONT)
	s.use(t, of, "west", "75m")
	eventually(t, "usage of the rest", func() error {
		got, err := s.AutoscalingV2().HorizontalPodAutoscalers("default").Get(t.Context(), "busy", metav1.GetOptions{})
		if err == nil && (len(got.Status.CurrentMetrics) != 1 || *got.Status.CurrentMetrics[0].Resource.Current.AverageUtilization != 75) {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	if got, err := s.AppsV1().Deployments("default").Get(t.Context(), "busy", metav1.GetOptions{}); err != nil || *got.Spec.Replicas != 4 {
		t.Errorf("%+v, %v", got.Spec, err)
	}
}

// use sets the usage of the pods in a cluster.
func (s *tenant) use(t *testing.T, of map[string]measuring, cluster, cpu string) {
	t.Helper()
	all, err := s.clusters[cluster].CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=busy"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Items {
		of[cluster].set(p, p.Spec.Containers[0].Name, cpu, "1Mi")
	}
}

// scaledTo waits until the Deployment has a number of replicas, while all of its pods use as much.
func (s *tenant) scaledTo(t *testing.T, of map[string]measuring, cpu string, want int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d replicas", want), func() error {
		for name := range s.clusters {
			s.use(t, of, name, cpu)
		}
		got, err := s.AppsV1().Deployments("default").Get(t.Context(), "busy", metav1.GetOptions{})
		if err == nil && (*got.Spec.Replicas != want || got.Status.ReadyReplicas != want) {
			scaler, err := s.AutoscalingV2().HorizontalPodAutoscalers("default").Get(t.Context(), "busy", metav1.GetOptions{})
			return fmt.Errorf("%d replicas, %d are ready: %+v, %w", *got.Spec.Replicas, got.Status.ReadyReplicas, scaler.Status, err)
		}
		return err
	})
}

// unscaled creates a HorizontalPodAutoscaler that cannot scale, and waits until its conditions say why.
func (s *tenant) unscaled(t *testing.T, name string, spec autoscalingv2.HorizontalPodAutoscalerSpec, why string) {
	t.Helper()
	scalers := s.AutoscalingV2().HorizontalPodAutoscalers("default")
	if _, err := scalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "condition", func() error {
		got, err := scalers.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (!strings.Contains(fmt.Sprint(got.Status.Conditions), why) || strings.Contains(fmt.Sprint(got.Status), s.logical(t))) {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
}

// recorded waits for an event about the HorizontalPodAutoscaler.
func (s *tenant) recorded(t *testing.T, reason string) {
	t.Helper()
	eventually(t, "event", func() error {
		all, err := s.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=HorizontalPodAutoscaler"})
		for _, e := range all.Items {
			if e.Reason == reason && e.InvolvedObject.Namespace == "default" && e.InvolvedObject.Name == "busy" {
				return nil
			}
		}
		return fmt.Errorf("no event %s: %v, %w", reason, all.Items, err)
	})
}

// duplicatedAutoscalers expects that what runs whole in each physical cluster is not scaled.
func (s *tenant) duplicatedAutoscalers(t *testing.T) {
	s.place(t, `{"spec":{"strategy":{"type":"Duplicated"}}}`)
	defer s.place(t, `{"spec":{"strategy":null}}`)
	s.unscaled(t, "twice", autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 4,
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "twice"}}, "has the strategy Duplicated")
	if err := s.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(t.Context(), "twice", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
