package autoscale

import (
	"context"
	"fmt"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/pods"
	"github.com/unforked/kcp/internal/workload/profile"
)

const (
	// mostScalers is the maximum of HorizontalPodAutoscalers of a namespace that are evaluated. Each of them is compared
	// with the pods of the others.
	mostScalers = 100
	// mostEvaluations is the maximum of evaluations of one workspace at the same time. They wait for physical clusters.
	mostEvaluations = 4
)

// Options are what autoscaling reads and writes.
type Options struct {
	Server *kcp.Server
	// Compute is the compute workspace, and Consumers have the objects of its consumers.
	Compute   kcp.ClusterName
	Consumers *consumers.Cache
	// Targets cache the SyncTargets of all compute workspaces.
	Targets *kcp.Kind[*workload.SyncTarget]
	Pods    *pods.Pods
	// Period is the time between two evaluations of an object.
	Period time.Duration
}

// Loop returns a loop that evaluates the HorizontalPodAutoscalers of the consumers, until ctx ends.
func Loop(ctx context.Context, o Options) kcp.Loop {
	all := o.Consumers.Kind(profile.Autoscalers().GroupResource()).Objects
	a := &autoscalers{Options: o, objects: all, scaler: newScaler(ctx, o), turns: newTurns(o.Period, mostEvaluations)}
	return kcp.Loop{Name: "workload-autoscale", Workers: 64, Do: a.evaluate, On: []kcp.Source{{Ready: o.Consumers.Settled()}, all.Changed(), a.turns.source()}}
}

// autoscalers are the HorizontalPodAutoscalers of the consumers.
type autoscalers struct {
	Options
	objects *kcp.Kind[*unstructured.Unstructured]
	scaler  *scaler
	turns   *turns
}

func (a *autoscalers) evaluate(ctx context.Context, key kcp.Key) error {
	defer a.turns.next(key.Cluster)
	o := a.objects.Get(key)
	if o == nil || o.GetDeletionTimestamp() != nil {
		if a.turns.drop(key) {
			a.scaler.forget(ctx, key)
		}
		return nil
	}
	left, leave := a.turns.enter(key, time.Now())
	switch {
	case left > 0:
		return kcp.After(left) // the status update of the last evaluation woke the loop
	case leave == nil:
		return nil // it waits for others of the workspace
	}
	defer leave()
	next := &autoscalingv2.HorizontalPodAutoscaler{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, next); err != nil {
		return err
	}
	p, err := a.Consumers.PlacementOf(ctx, key)
	if err != nil {
		return err
	}
	if err := a.scaler.evaluate(ctx, key, next, a.refusal(key, next, p)); err != nil {
		klog.FromContext(ctx).V(2).Info("cannot evaluate a HorizontalPodAutoscaler", "err", err) // its status says so
	}
	return kcp.After(a.Period)
}

// refusal returns why the object at key does not scale; nil if it does. The Placement of its namespace may be nil.
func (a *autoscalers) refusal(key kcp.Key, of *autoscalingv2.HorizontalPodAutoscaler, p *scheduling.Placement) error {
	// The number of replicas would be that of each physical cluster, and the pods those of all.
	if p != nil && p.Spec.Strategy.Type == scheduling.Duplicated && of.Spec.ScaleTargetRef.Kind != "StatefulSet" {
		return fmt.Errorf("the Placement %q has the strategy Duplicated; only workloads whose replicas are divided are scaled", p.Name)
	}
	if n := a.turns.counted(key); n > mostScalers {
		return fmt.Errorf("the namespace has %d HorizontalPodAutoscalers; with more than %d, none is evaluated", n, mostScalers)
	}
	return nil
}

// mayScale reports whether HorizontalPodAutoscalers may scale the objects of a resource. They may if the fleet places
// the resource or the workspace defines it. Another provider may limit what the author may scale, and the scaler
// would bypass that limit.
func (o Options) mayScale(in kcp.ClusterName, of schema.GroupResource) bool {
	if k := o.Consumers.Kind(of); k != nil {
		return true
	}
	_, _, bound := o.Server.Bound(in, of)
	return !bound
}

// podsOf returns pods of a namespace and their usage. For a target that does not answer, there are placeholders
// without usage, so that the controller does not take the remaining pods for the whole workload.
func (o Options) podsOf(ctx context.Context, at kcp.Key, selector labels.Selector) (*pods.Measurement, error) {
	area, of := o.area(at, selector)
	m, err := o.Pods.Measure(ctx, area, selector)
	if err != nil {
		return nil, err
	}
	for _, s := range of {
		n := 0
		for _, t := range s.a.Spec.Targets {
			if slices.Contains(m.Unanswered, t.Key) && t.Phase != workload.Removing && t.Replicas != nil {
				n += int(*t.Replicas)
			}
		}
		if len(m.Pods)+n > pods.MostMeasured {
			return nil, fmt.Errorf("physical clusters with more than %d pods do not answer", pods.MostMeasured-len(m.Pods))
		}
		if err := s.placeholders(m, n); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// A scaled is a workload with its pods.
type scaled struct {
	kind   *consumers.Kind
	object *unstructured.Unstructured
	a      *workload.Assignment
}

// area returns where the pods that a selector selects may run, and their workloads. If no workload tells the labels of
// its pods, they may be wherever the namespace has one.
func (o Options) area(at kcp.Key, selector labels.Selector) (area pods.Area, of []scaled) {
	area = pods.Area{Cluster: at.Cluster, Compute: o.Compute, Namespace: at.Namespace}
	all := o.Consumers.AssignedIn(at)
	for _, a := range all {
		id := engine.IDFor(a, a.Spec.Workload)
		k := o.Consumers.Kind(id.GroupResource)
		if k == nil || len(k.Template) == 0 {
			continue
		}
		w := k.Objects.Get(id.Key)
		if w == nil {
			continue
		}
		with, _, err := unstructured.NestedStringMap(w.Object, append(slices.Clone(k.Template), "metadata", "labels")...)
		if err != nil || !selector.Matches(labels.Set(with)) {
			continue
		}
		of = append(of, scaled{k, w, a})
	}
	for _, s := range of {
		area.Assignments = append(area.Assignments, *s.a)
	}
	if len(of) == 0 {
		for _, a := range all {
			area.Assignments = append(area.Assignments, *a)
		}
	}
	keys := map[string]bool{}
	for _, a := range area.Assignments {
		for _, t := range a.Spec.Targets {
			keys[t.Key] = true
		}
	}
	for _, t := range o.Targets.List(o.Compute) {
		if keys[engine.TargetKey(string(o.Compute), t.Name, string(t.UID))] {
			area.Targets = append(area.Targets, *t)
		}
	}
	return area, of
}

// placeholders adds n pods of a workload to a measurement.
func (s scaled) placeholders(m *pods.Measurement, n int) error {
	content, _, err := unstructured.NestedMap(s.object.Object, s.kind.Template...)
	if err != nil {
		return err
	}
	template := corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &template); err != nil {
		return err
	}
	for i := range n {
		p := pods.Counted(&corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec})
		p.Name, p.Status.Phase = fmt.Sprintf("%s.%d", s.object.GetName(), i), corev1.PodRunning
		m.Pods = append(m.Pods, p)
	}
	return nil
}
