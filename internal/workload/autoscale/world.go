package autoscale

import (
	"context"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	autoscalingclient "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/upstream/autoscaler"
	"github.com/unforked/kcp/internal/workload/pods"
)

// world implements [autoscaler.World] with the objects of logical clusters.
type world struct {
	Source
	ctx context.Context //nolint:containedctx // of the Scaler; the lister of pods has none

	mu       sync.Mutex
	measured map[kcp.Key]map[string]*measured // while they are evaluated, by namespace and selector; guarded by mu
}

// measured is read once in an evaluation, which asks for it several times.
type measured struct {
	once sync.Once
	*pods.Measurement
	err error
}

// forget drops what was measured in a namespace. Another evaluation there measures anew.
func (w *world) forget(namespace kcp.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.measured, namespace)
}

func (w *world) measure(ctx context.Context, in autoscaler.Namespace, selector labels.Selector) (*pods.Measurement, error) {
	at, text := kcp.Key{Cluster: kcp.ClusterName(in.Cluster), Namespace: in.Name}, selector.String()
	w.mu.Lock()
	all := w.measured[at]
	if all == nil {
		all = map[string]*measured{}
		w.measured[at] = all
	}
	m := all[text]
	if m == nil {
		m = &measured{}
		all[text] = m
	}
	w.mu.Unlock()
	m.once.Do(func() { m.Measurement, m.err = w.Measure(ctx, at, selector) })
	return m.Measurement, m.err
}

// Pods implements [autoscaler.World].
func (w *world) Pods(in autoscaler.Namespace, selector labels.Selector) ([]*corev1.Pod, error) {
	m, err := w.measure(w.ctx, in, selector)
	if err != nil {
		return nil, err
	}
	all := make([]*corev1.Pod, 0, len(m.Pods))
	for _, p := range m.Pods {
		one := *p
		all = append(all, &one)
	}
	return all, nil
}

// Usage implements [autoscaler.World].
func (w *world) Usage(ctx context.Context, in autoscaler.Namespace, selector string) (*metricsv1beta1.PodMetricsList, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil, err
	}
	m, err := w.measure(ctx, in, parsed)
	if err != nil {
		return nil, err
	}
	return &metricsv1beta1.PodMetricsList{Items: m.Usage}, m.Unmeasured
}

// scaled returns a client of the scales of a kind.
func (w *world) scaled(ctx context.Context, in autoscaler.Namespace, of schema.GroupKind) (dynamic.ResourceInterface, error) {
	cfg, err := w.Config(kcp.ClusterName(in.Cluster))
	if err != nil {
		return nil, err
	}
	var resource schema.GroupVersionResource
	if of.Group == appsv1.GroupName { // as nearly always; these need no discovery
		resource, _ = meta.UnsafeGuessKindToResource(appsv1.SchemeGroupVersion.WithKind(of.Kind))
	} else {
		c, err := discovery.NewDiscoveryClientForConfig(cfg)
		if err != nil {
			return nil, err
		}
		if resource, err = resourceOf(ctx, c, of); err != nil {
			return nil, err
		}
	}
	all, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return all.Resource(resource).Namespace(in.Name), nil
}

// resourceOf returns the resource of a kind in the preferred version of its group.
func resourceOf(ctx context.Context, c *discovery.DiscoveryClient, of schema.GroupKind) (none schema.GroupVersionResource, err error) {
	path := "/apis/" + of.Group
	group := &metav1.APIGroup{}
	preferred := "v1"
	if of.Group == "" {
		path = "/api"
	} else {
		if err := c.RESTClient().Get().AbsPath(path).Do(ctx).Into(group); err != nil {
			return none, err
		}
		preferred = group.PreferredVersion.Version
	}
	list := &metav1.APIResourceList{}
	if err := c.RESTClient().Get().AbsPath(path, preferred).Do(ctx).Into(list); err != nil {
		return none, err
	}
	for _, r := range list.APIResources {
		if r.Kind == of.Kind && !strings.Contains(r.Name, "/") {
			return schema.GroupVersionResource{Group: of.Group, Version: preferred, Resource: r.Name}, nil
		}
	}
	return none, &meta.NoKindMatchError{GroupKind: of, SearchedVersions: []string{preferred}}
}

const scaleSubresource = "scale"

// Scale implements [autoscaler.World].
func (w *world) Scale(ctx context.Context, in autoscaler.Namespace, of schema.GroupKind, name string) (*autoscalingv1.Scale, error) {
	c, err := w.scaled(ctx, in, of)
	if err != nil {
		return nil, err
	}
	o, err := c.Get(ctx, name, metav1.GetOptions{}, scaleSubresource)
	if err != nil {
		return nil, err
	}
	s := &autoscalingv1.Scale{}
	return s, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s)
}

// SetScale implements [autoscaler.World].
func (w *world) SetScale(ctx context.Context, in autoscaler.Namespace, of schema.GroupKind, s *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	c, err := w.scaled(ctx, in, of)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s)
	if err != nil {
		return nil, err
	}
	_, err = c.Update(ctx, &unstructured.Unstructured{Object: content}, metav1.UpdateOptions{}, scaleSubresource)
	return s, err
}

// SetStatus implements [autoscaler.World].
func (w *world) SetStatus(ctx context.Context, in autoscaler.Namespace, a *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	cfg, err := w.Config(kcp.ClusterName(in.Cluster))
	if err != nil {
		return nil, err
	}
	c, err := autoscalingclient.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return c.HorizontalPodAutoscalers(in.Name).UpdateStatus(ctx, a, metav1.UpdateOptions{})
}

func (w *world) events(in autoscaler.Namespace) (coreclient.EventInterface, error) {
	cfg, err := w.Config(kcp.ClusterName(in.Cluster))
	if err != nil {
		return nil, err
	}
	c, err := coreclient.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return c.Events(in.Name), nil
}

// CreateEvent implements [autoscaler.World].
func (w *world) CreateEvent(in autoscaler.Namespace, e *corev1.Event) (*corev1.Event, error) {
	c, err := w.events(in)
	if err != nil {
		return nil, err
	}
	return c.Create(w.ctx, e, metav1.CreateOptions{})
}

// PatchEvent implements [autoscaler.World].
func (w *world) PatchEvent(in autoscaler.Namespace, name string, patch []byte) (*corev1.Event, error) {
	c, err := w.events(in)
	if err != nil {
		return nil, err
	}
	return c.Patch(w.ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}
