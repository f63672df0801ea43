package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/autoscale"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/pods"
	"github.com/unforked/kcp/internal/workload/profile"
)

// autoscaleLoop evaluates HorizontalPodAutoscalers.
func (f *fleet) autoscaleLoop() kcp.Loop {
	all := f.kinds.get(profile.Autoscalers().GroupResource()).objects
	a := &autoscalers{objects: all, period: f.options.Autoscale, last: map[kcp.Key]time.Time{}, scaler: autoscale.New(f.ctx, autoscale.Source{
		Config:  func(of kcp.ClusterName) (*rest.Config, error) { return f.server.Own(string(of)) },
		Measure: f.measure,
	})}
	return kcp.Loop{Name: "workload-autoscale", Workers: 16, Do: a.evaluate, On: []kcp.Source{{Ready: f.kinds.settled}, all.Changed()}}
}

// autoscalers are the HorizontalPodAutoscalers of a fleet.
type autoscalers struct {
	objects *kcp.Kind[*unstructured.Unstructured]
	scaler  *autoscale.Scaler
	period  time.Duration

	mu   sync.Mutex
	last map[kcp.Key]time.Time // the last evaluation of each; guarded by mu
}

func (a *autoscalers) evaluate(ctx context.Context, key kcp.Key) error {
	o := a.objects.Get(key)
	if o == nil || o.GetDeletionTimestamp() != nil {
		if a.drop(key) {
			a.scaler.Forget(ctx, key)
		}
		return nil
	}
	if rest := a.wait(key, time.Now()); rest > 0 {
		return kcp.After(rest) // what the last evaluation wrote has woken the loop
	}
	next := &autoscalingv2.HorizontalPodAutoscaler{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, next); err != nil {
		return err
	}
	if err := a.scaler.Evaluate(ctx, key, next); err != nil {
		klog.FromContext(ctx).V(2).Info("cannot evaluate a HorizontalPodAutoscaler", "err", err) // its conditions say so
	}
	return kcp.After(a.period)
}

// wait returns how long to wait before the object at key may be evaluated. If that is zero, the caller
// evaluates it now.
func (a *autoscalers) wait(key kcp.Key, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rest := a.period - now.Sub(a.last[key]); rest > 0 {
		return rest
	}
	a.last[key] = now
	return 0
}

// drop forgets the last evaluation of the object at key. It reports whether there was one.
func (a *autoscalers) drop(key kcp.Key) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, was = a.last[key]
	delete(a.last, key)
	return was
}

// measure returns pods of a namespace and their usage. Those of targets that do not answer are there without
// usage: then the controller of HorizontalPodAutoscalers neither takes the rest for all, nor stops.
func (f *fleet) measure(ctx context.Context, at kcp.Key, selector labels.Selector) (*pods.Measurement, error) {
	area, of := f.area(at, selector)
	m, err := f.options.pods.Measure(ctx, area, selector)
	if err != nil {
		return nil, err
	}
	for _, w := range of {
		for _, t := range w.a.Spec.Targets {
			if !slices.Contains(m.Unanswered, t.Key) {
				continue
			}
			missing, err := w.missing(t)
			if err != nil {
				return nil, err
			}
			m.Pods = append(m.Pods, missing...)
		}
	}
	return m, nil
}

// area returns where the pods that a selector selects may run, and their workloads.
func (f *fleet) area(at kcp.Key, selector labels.Selector) (area pods.Area, of []subject) {
	area = pods.Area{Cluster: at.Cluster, Compute: f.compute, Namespace: at.Namespace}
	keys := map[string]bool{}
	for _, a := range f.assignedIn(at) {
		id := engine.IDFor(a, a.Spec.Workload)
		k := f.kinds.get(id.GroupResource)
		if k == nil || len(k.Template) == 0 {
			continue
		}
		w := k.objects.Get(id.Key)
		if w == nil {
			continue
		}
		with, _, err := unstructured.NestedStringMap(w.Object, append(slices.Clone(k.Template), "metadata", "labels")...)
		if err != nil || !selector.Matches(labels.Set(with)) {
			continue
		}
		area.Assignments, of = append(area.Assignments, *a), append(of, subject{k, id, w, a})
		for _, t := range a.Spec.Targets {
			keys[t.Key] = true
		}
	}
	for _, t := range f.targets.List(f.compute) {
		if keys[engine.TargetKey(string(f.compute), t.Name, string(t.UID))] {
			area.Targets = append(area.Targets, *t)
		}
	}
	return area, of
}

// mostMissing is the maximum of pods of one workload that are counted at a target that does not answer.
const mostMissing = 5000

// missing returns the pods that a target should run, and does not tell about.
func (s subject) missing(t workload.AssignedTarget) (all []*corev1.Pod, err error) {
	content, _, err := unstructured.NestedMap(s.w.Object, s.Template...)
	if err != nil {
		return nil, err
	}
	template := corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &template); err != nil {
		return nil, err
	}
	n := t.Replicas
	if n == nil {
		if n = s.Wants(s.w); n == nil {
			return nil, nil
		}
	}
	for i := range min(*n, mostMissing) {
		name := fmt.Sprintf("%s-%s-%d", s.w.GetName(), t.Key, i)
		all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	}
	return all, nil
}
