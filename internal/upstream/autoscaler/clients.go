package autoscaler

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	autoscalingclient "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/scale"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"
)

// kinds maps each kind to a resource of that name, because the mapper does not get the logical cluster that it
// maps for. Methods that the controller does not use panic.
type kinds struct{ meta.RESTMapper }

// RESTMappings implements [meta.RESTMapper].
func (kinds) RESTMappings(of schema.GroupKind, _ ...string) ([]*meta.RESTMapping, error) {
	return []*meta.RESTMapping{{Resource: schema.GroupVersionResource{Group: of.Group, Resource: of.Kind}}}, nil
}

func kindOf(r schema.GroupResource) schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Resource}
}

// scales is a client of scales. Methods that the controller does not use panic.
type scales struct {
	scale.ScaleInterface // nil
	w                    World
	in                   Namespace
}

// Scales implements [scale.ScalesGetter].
func (s scales) Scales(namespace string) scale.ScaleInterface {
	return scales{w: s.w, in: split(namespace)}
}

// Get implements [scale.ScaleInterface].
func (s scales) Get(ctx context.Context, of schema.GroupResource, name string, _ metav1.GetOptions) (*autoscalingv1.Scale, error) {
	if e := evaluationOf(ctx); e.refusal != nil {
		return nil, e.refusal
	}
	return s.w.Scale(ctx, s.in, kindOf(of), name)
}

// Update implements [scale.ScaleInterface].
func (s scales) Update(ctx context.Context, of schema.GroupResource, to *autoscalingv1.Scale, _ metav1.UpdateOptions) (*autoscalingv1.Scale, error) {
	return s.w.SetScale(ctx, s.in, kindOf(of), to)
}

// statuses is a client of HorizontalPodAutoscalers. Methods that the controller does not use panic.
type statuses struct {
	autoscalingclient.HorizontalPodAutoscalerInterface // nil
	w                                                  World
	in                                                 Namespace
}

// HorizontalPodAutoscalers implements [autoscalingclient.HorizontalPodAutoscalersGetter].
func (s statuses) HorizontalPodAutoscalers(namespace string) autoscalingclient.HorizontalPodAutoscalerInterface {
	return statuses{w: s.w, in: split(namespace)}
}

// UpdateStatus implements [autoscalingclient.HorizontalPodAutoscalerInterface]. The controller would log its errors,
// which tenants can cause.
func (s statuses) UpdateStatus(ctx context.Context, a *autoscalingv2.HorizontalPodAutoscaler, _ metav1.UpdateOptions) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	a = a.DeepCopy()
	a.Namespace = s.in.Name
	for i := range a.Status.Conditions {
		of := &a.Status.Conditions[i]
		of.Message = s.in.plain(of.Message)
	}
	evaluationOf(ctx).unwritten = s.w.SetStatus(ctx, s.in, a)
	return a, nil
}

// events is a client of events. Methods that recorders do not use panic.
type events struct {
	coreclient.EventInterface // nil
	w                         World
}

// Events implements [coreclient.EventsGetter].
func (e events) Events(string) coreclient.EventInterface { return e }

// CreateWithEventNamespace implements [coreclient.EventInterface].
func (e events) CreateWithEventNamespace(of *corev1.Event) (*corev1.Event, error) {
	in := split(of.Namespace)
	of = of.DeepCopy()
	of.Namespace, of.InvolvedObject.Namespace, of.Message = in.Name, in.Name, in.plain(of.Message)
	e.w.CreateEvent(in, of)
	return of, nil
}

// PatchWithEventNamespace implements [coreclient.EventInterface].
func (e events) PatchWithEventNamespace(of *corev1.Event, patch []byte) (*corev1.Event, error) {
	in := split(of.Namespace)
	e.w.PatchEvent(in, of.Name, []byte(in.plain(string(patch))))
	return of, nil
}

// usages is a client of the usage of pods. Methods that the controller does not use panic.
type usages struct {
	metricsclient.PodMetricsInterface // nil
	w                                 World
	in                                Namespace
}

// PodMetricses implements [metricsclient.PodMetricsesGetter].
func (u usages) PodMetricses(namespace string) metricsclient.PodMetricsInterface {
	return usages{w: u.w, in: split(namespace)}
}

// List implements [metricsclient.PodMetricsInterface].
func (u usages) List(ctx context.Context, o metav1.ListOptions) (*metricsv1beta1.PodMetricsList, error) {
	return u.w.Usage(ctx, u.in, o.LabelSelector)
}

// unserved is a client of metrics of a type that is not served.
type unserved struct{}

var errUnserved = errors.New("metrics of the types Pods, Object and External are not served; use the type Resource or ContainerResource")

// RootScopedMetrics implements [custom_metrics.CustomMetricsClient].
func (u unserved) RootScopedMetrics() custom_metrics.MetricsInterface { return u }

// NamespacedMetrics implements [custom_metrics.CustomMetricsClient].
func (u unserved) NamespacedMetrics(string) custom_metrics.MetricsInterface { return u }

// GetForObject implements [custom_metrics.MetricsInterface].
func (unserved) GetForObject(_ schema.GroupKind, _, metric string, _ labels.Selector) (*v1beta2.MetricValue, error) {
	return nil, fmt.Errorf("metric %q: %w", metric, errUnserved)
}

// GetForObjects implements [custom_metrics.MetricsInterface].
func (unserved) GetForObjects(_ schema.GroupKind, _ labels.Selector, metric string, _ labels.Selector) (*v1beta2.MetricValueList, error) {
	return nil, fmt.Errorf("metric %q: %w", metric, errUnserved)
}

// unservedExternal is [unserved] for metrics that describe no object.
type unservedExternal struct{}

// NamespacedMetrics implements [external_metrics.ExternalMetricsClient].
func (u unservedExternal) NamespacedMetrics(string) external_metrics.MetricsInterface { return u }

// List implements [external_metrics.MetricsInterface].
func (unservedExternal) List(metric string, _ labels.Selector) (*v1beta1.ExternalMetricValueList, error) {
	return nil, fmt.Errorf("metric %q: %w", metric, errUnserved)
}
