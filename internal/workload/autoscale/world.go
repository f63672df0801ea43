package autoscale

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

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
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/upstream/autoscaler"
	"github.com/unforked/kcp/internal/workload/pods"
)

// world implements [autoscaler.World] with the objects of logical clusters.
type world struct {
	Options
	ctx context.Context //nolint:containedctx // of the scaler

	mu       sync.Mutex
	measured map[kcp.Key]*namespace // those with an evaluation; guarded by mu
	sending  map[string]int         // events that are being written, by logical cluster; guarded by mu
}

// A namespace has what evaluations measured in it.
type namespace struct {
	evaluations int
	by          map[string]*measured // by selector
}

// measured is read once. An evaluation asks for it several times.
type measured struct {
	once sync.Once
	at   time.Time
	*pods.Measurement
	err error
}

// enter begins an evaluation in a namespace. The last one that leaves drops the measurements.
func (w *world) enter(at kcp.Key) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.measured[at]
	if n == nil {
		n = &namespace{by: map[string]*measured{}}
		w.measured[at] = n
	}
	n.evaluations++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.evaluations--; n.evaluations == 0 {
			delete(w.measured, at)
		}
	}
}

func (w *world) measure(in autoscaler.Namespace, selector labels.Selector) (*pods.Measurement, error) {
	at, text := kcp.Key{Cluster: kcp.ClusterName(in.Cluster), Namespace: in.Name}, selector.String()
	w.mu.Lock()
	n := w.measured[at]
	m := n.by[text]
	if m == nil || time.Since(m.at) > fresh {
		m = &measured{at: time.Now()}
		n.by[text] = m
	}
	w.mu.Unlock()
	m.once.Do(func() {
		ctx, cancel := context.WithTimeout(w.ctx, deadline) // not that of one evaluation
		defer cancel()
		m.Measurement, m.err = w.podsOf(ctx, at, selector)
	})
	return m.Measurement, m.err
}

// Pods implements [autoscaler.World].
func (w *world) Pods(in autoscaler.Namespace, selector labels.Selector) ([]*corev1.Pod, error) {
	m, err := w.measure(in, selector)
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
func (w *world) Usage(_ context.Context, in autoscaler.Namespace, selector string) (*metricsv1beta1.PodMetricsList, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil, err
	}
	m, err := w.measure(in, parsed)
	if err != nil {
		return nil, err
	}
	return &metricsv1beta1.PodMetricsList{Items: m.Usage}, m.Unmeasured
}

// scaled returns a client of the scales of a kind.
func (w *world) scaled(ctx context.Context, in autoscaler.Namespace, of schema.GroupKind) (dynamic.ResourceInterface, error) {
	cfg, err := w.Server.Own(in.Cluster)
	if err != nil {
		return nil, err
	}
	resource, err := resourceOf(ctx, cfg, of)
	if err != nil {
		return nil, err
	}
	if !w.mayScale(kcp.ClusterName(in.Cluster), resource.GroupResource()) {
		return nil, fmt.Errorf("%s are those of an API provider and do not run on physical clusters, so they are not scaled", resource.GroupResource())
	}
	all, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return all.Resource(resource).Namespace(in.Name), nil
}

// kindsOfApps are the resources of Kubernetes that have a scale.
var kindsOfApps = map[schema.GroupKind]schema.GroupVersionResource{
	{Group: appsv1.GroupName, Kind: "Deployment"}:  appsv1.SchemeGroupVersion.WithResource("deployments"),
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  appsv1.SchemeGroupVersion.WithResource("replicasets"),
	{Group: appsv1.GroupName, Kind: "StatefulSet"}: appsv1.SchemeGroupVersion.WithResource("statefulsets"),
}

// resourceOf returns the resource of a kind, in the preferred version of its group that has the kind.
func resourceOf(ctx context.Context, cfg *rest.Config, of schema.GroupKind) (none schema.GroupVersionResource, err error) {
	if r, ok := kindsOfApps[of]; ok { // as nearly always; these need no discovery
		return r, nil
	}
	c, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return none, err
	}
	path, versions := "/api", []string{"v1"}
	if of.Group != "" {
		path = "/apis/" + of.Group
		group := &metav1.APIGroup{}
		if err := c.RESTClient().Get().AbsPath(path).Do(ctx).Into(group); err != nil {
			return none, err
		}
		versions = []string{group.PreferredVersion.Version}
		for _, v := range group.Versions {
			versions = append(versions, v.Version)
		}
	}
	for _, v := range slices.Compact(versions) {
		list := &metav1.APIResourceList{}
		if err := c.RESTClient().Get().AbsPath(path, v).Do(ctx).Into(list); err != nil {
			return none, err
		}
		for _, r := range list.APIResources {
			if r.Kind == of.Kind && !strings.Contains(r.Name, "/") {
				return schema.GroupVersionResource{Group: of.Group, Version: v, Resource: r.Name}, nil
			}
		}
	}
	return none, &meta.NoKindMatchError{GroupKind: of, SearchedVersions: versions}
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
func (w *world) SetStatus(ctx context.Context, in autoscaler.Namespace, a *autoscalingv2.HorizontalPodAutoscaler) error {
	cfg, err := w.Server.Own(in.Cluster)
	if err != nil {
		return err
	}
	c, err := autoscalingclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = c.HorizontalPodAutoscalers(in.Name).UpdateStatus(ctx, a, metav1.UpdateOptions{})
	return err
}

// CreateEvent implements [autoscaler.World].
func (w *world) CreateEvent(in autoscaler.Namespace, e *corev1.Event) {
	w.send(in, func(ctx context.Context, c coreclient.EventInterface) error {
		_, err := c.Create(ctx, e, metav1.CreateOptions{})
		return err
	})
}

// PatchEvent implements [autoscaler.World].
func (w *world) PatchEvent(in autoscaler.Namespace, name string, patch []byte) {
	w.send(in, func(ctx context.Context, c coreclient.EventInterface) error {
		_, err := c.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

const (
	// mostSending is the maximum of events of one logical cluster that are written at a time. A webhook of the
	// tenant may delay them. More are dropped.
	mostSending = 10
	sendTimeout = 10 * time.Second
)

// send writes an event, and does not wait for it.
func (w *world) send(in autoscaler.Namespace, write func(context.Context, coreclient.EventInterface) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sending[in.Cluster] >= mostSending {
		return
	}
	w.sending[in.Cluster]++
	go func() {
		ctx, cancel := context.WithTimeout(w.ctx, sendTimeout)
		defer cancel()
		if err := w.write(ctx, in, write); err != nil {
			klog.FromContext(ctx).V(2).Info("cannot write an event", "cluster", in.Cluster, "err", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.sending[in.Cluster]--; w.sending[in.Cluster] == 0 {
			delete(w.sending, in.Cluster)
		}
	}()
}

func (w *world) write(ctx context.Context, in autoscaler.Namespace, write func(context.Context, coreclient.EventInterface) error) error {
	cfg, err := w.Server.Own(in.Cluster)
	if err != nil {
		return err
	}
	c, err := coreclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	return write(ctx, c.Events(in.Name))
}
