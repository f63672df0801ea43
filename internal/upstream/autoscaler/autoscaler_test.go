package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// memory is a World with one workload in each namespace.
type memory struct {
	mu       sync.Mutex
	replicas map[Namespace]int32
	cpu      map[Namespace]string // that each pod uses
	statuses map[string]autoscalingv2.HorizontalPodAutoscalerStatus
	events   []corev1.Event
}

func newMemory() *memory {
	return &memory{replicas: map[Namespace]int32{}, cpu: map[Namespace]string{}, statuses: map[string]autoscalingv2.HorizontalPodAutoscalerStatus{}}
}

func (m *memory) Scale(_ context.Context, in Namespace, of schema.GroupKind, name string) (*autoscalingv1.Scale, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of != appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind() {
		return nil, fmt.Errorf("no kind %s", of)
	}
	n := m.replicas[in]
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: autoscalingv1.ScaleSpec{Replicas: n}, Status: autoscalingv1.ScaleStatus{Replicas: n, Selector: "app=web"}}, nil
}

func (m *memory) SetScale(_ context.Context, in Namespace, _ schema.GroupKind, s *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.replicas[in] = s.Spec.Replicas
	return s, nil
}

func (m *memory) SetStatus(_ context.Context, in Namespace, a *autoscalingv2.HorizontalPodAutoscaler) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.Namespace != in.Name {
		return errors.New("another namespace: " + a.Namespace)
	}
	m.statuses[in.Cluster+"/"+a.Namespace+"/"+a.Name] = a.Status
	return nil
}

func (m *memory) Pods(in Namespace, _ labels.Selector) (all []*corev1.Pod, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.replicas[in] {
		all = append(all, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i), Namespace: in.Name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: time.Now().Add(-time.Hour)},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	return all, nil
}

func (m *memory) Usage(_ context.Context, in Namespace, selector string) (*metricsv1beta1.PodMetricsList, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &metricsv1beta1.PodMetricsList{}
	if selector != "app=web" {
		return nil, errors.New("another selector: " + selector)
	}
	for i := range m.replicas[in] {
		out.Items = append(out.Items, metricsv1beta1.PodMetrics{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i), Namespace: in.Name}, Timestamp: metav1.Now(),
			Containers: []metricsv1beta1.ContainerMetrics{{Name: "web", Usage: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(m.cpu[in])}}}})
	}
	return out, nil
}

func (m *memory) CreateEvent(_ Namespace, e *corev1.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, *e)
}

func (*memory) PatchEvent(Namespace, string, []byte) {}

func scaler(name string) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 10, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))}}}}},
	}
}

// TestClusters evaluates objects with equal names in two logical clusters at the same time. Each follows
// the usage of its own pods.
func TestClusters(t *testing.T) {
	m := newMemory()
	c := New(t.Context(), m)
	busy, idle := Namespace{"busy", "default"}, Namespace{"idle", "default"}
	m.replicas[busy], m.replicas[idle] = 2, 2
	m.cpu[busy], m.cpu[idle] = "100m", "50m"
	var both sync.WaitGroup
	for _, in := range []Namespace{busy, idle} {
		both.Go(func() {
			if err := c.Evaluate(t.Context(), in, scaler("web"), nil); err != nil {
				t.Errorf("%v: %v", in, err)
			}
		})
	}
	both.Wait()
	if m.replicas[busy] != 4 || m.replicas[idle] != 2 {
		t.Errorf("%v", m.replicas)
	}
	for name, s := range m.statuses {
		if len(s.Conditions) < 2 || strings.Contains(fmt.Sprint(s), ":default") {
			t.Errorf("%s: %+v", name, s)
		}
	}
	// The last recommendation holds for the stabilization window, unless it was forgotten.
	m.cpu[busy] = "1m"
	if err := c.Evaluate(t.Context(), busy, scaler("web"), nil); err != nil || m.replicas[busy] != 4 {
		t.Errorf("%d replicas, %v", m.replicas[busy], err)
	}
	c.Forget(t.Context(), busy, "web")
	c.Forget(t.Context(), idle, "web")
	if err := c.Evaluate(t.Context(), idle, scaler("web"), nil); err != nil || m.replicas[idle] != 2 {
		t.Errorf("%d replicas, %v", m.replicas[idle], err)
	}
}

// TestAmbiguous evaluates two objects for the same pods. A deleted one does not count.
func TestAmbiguous(t *testing.T) {
	m := newMemory()
	c := New(t.Context(), m)
	in := Namespace{"one", "default"}
	m.replicas[in], m.cpu[in] = 2, "50m"
	if err := c.Evaluate(t.Context(), in, scaler("first"), nil); err != nil {
		t.Fatal(err)
	}
	err := c.Evaluate(t.Context(), in, scaler("second"), nil)
	if s := fmt.Sprint(m.statuses["one/default/second"]); err == nil || !strings.Contains(s, "controlled by multiple HPAs") || strings.Contains(s, "one") {
		t.Errorf("%v, %s", err, s)
	}
	c.Forget(t.Context(), in, "first")
	if err := c.Evaluate(t.Context(), in, scaler("second"), nil); err != nil {
		t.Error(err)
	}
}

// TestRefused expects that the target of an object that is refused stays as it is, and that the status says why.
func TestRefused(t *testing.T) {
	m := newMemory()
	c := New(t.Context(), m)
	in := Namespace{"one", "default"}
	m.replicas[in], m.cpu[in] = 2, "100m"
	refusal := errors.New("not here")
	err := c.Evaluate(t.Context(), in, scaler("web"), refusal)
	if s := fmt.Sprint(m.statuses["one/default/web"]); err == nil || m.replicas[in] != 2 || !strings.Contains(s, "not here") {
		t.Errorf("%d replicas, %v, %s", m.replicas[in], err, s)
	}
	if err := c.Evaluate(t.Context(), in, scaler("web"), nil); err != nil || m.replicas[in] != 4 {
		t.Errorf("%d replicas, %v", m.replicas[in], err)
	}
}

// TestEnds expects that the goroutines of a controller end with its context.
func TestEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, end := context.WithCancel(t.Context())
	c := New(ctx, newMemory())
	if err := c.Evaluate(ctx, Namespace{"one", "default"}, scaler("web"), nil); err != nil { // its target has no replicas
		t.Error(err)
	}
	if now := runtime.NumGoroutine(); now > before+6 {
		t.Errorf("%d goroutines for a controller", now-before)
	}
	end()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return runtime.NumGoroutine() <= before, nil })
	if err == nil {
		return
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}
