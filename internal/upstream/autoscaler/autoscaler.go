// Package autoscaler is the controller of HorizontalPodAutoscalers of Kubernetes, for the objects of many
// logical clusters. The caller decides when it evaluates which object. It hides that the controller
// knows only one cluster.
package autoscaler

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	_ "unsafe" // for go:linkname
)

// The defaults of a controller manager.
const (
	// Period is the time between two evaluations of an object.
	Period = 15 * time.Second

	tolerance             = 0.1
	stabilization         = 5 * time.Minute
	cpuInitialization     = 5 * time.Minute
	initialReadinessDelay = 30 * time.Second
)

// A Namespace is a namespace of a logical cluster.
type Namespace struct{ Cluster, Name string }

// separator is in no name of a logical cluster or namespace.
const separator = ":"

// joined is the name of the namespace in the controller.
func (n Namespace) joined() string { return n.Cluster + separator + n.Name }

func split(joined string) Namespace {
	c, name, _ := strings.Cut(joined, separator)
	return Namespace{c, name}
}

// plain removes the logical cluster from a text for users.
func (n Namespace) plain(text string) string {
	return strings.ReplaceAll(text, n.joined(), n.Name)
}

// A World is what the controller reads and writes. Pods that are returned must be in the namespace.
type World interface {
	Scale(ctx context.Context, in Namespace, of schema.GroupKind, name string) (*autoscalingv1.Scale, error)
	SetScale(ctx context.Context, in Namespace, of schema.GroupKind, scale *autoscalingv1.Scale) (*autoscalingv1.Scale, error)
	SetStatus(ctx context.Context, in Namespace, a *autoscalingv2.HorizontalPodAutoscaler) error
	// Pods returns copies of pods.
	Pods(in Namespace, selector labels.Selector) ([]*corev1.Pod, error)
	Usage(ctx context.Context, in Namespace, selector string) (*metricsv1beta1.PodMetricsList, error)
	// CreateEvent and PatchEvent must not wait: there is one recorder.
	CreateEvent(in Namespace, e *corev1.Event)
	PatchEvent(in Namespace, name string, patch []byte)
}

// A Controller evaluates HorizontalPodAutoscalers. It remembers the last recommendations for each of them until
// Forget is called.
type Controller struct {
	inner   *podautoscaler.HorizontalController
	objects objects
}

// New returns a controller. The goroutines that write its events end with ctx.
//
// At the next minor version: look at the order and the meaning of the constructor's parameters,
// several of which have the same type, and at Run, which must end the queue of the controller when its
// context has ended.
func New(ctx context.Context, w World) *Controller {
	c := &Controller{}
	c.objects.of = map[string]*autoscalingv2.HorizontalPodAutoscaler{}
	ctx = klog.NewContext(ctx, logr.Discard())
	c.inner = podautoscaler.NewHorizontalController(ctx, events{w: w}, scales{w: w}, statuses{w: w}, kinds{},
		metrics.NewRESTMetricsClient(usages{w: w}, unserved{}, unservedExternal{}), &c.objects, pods{w: w},
		Period, stabilization, tolerance, cpuInitialization, initialReadinessDelay)
	ended, end := context.WithCancel(ctx)
	end()
	c.inner.Run(ended, 0) // the queue is not used, and has goroutines
	return c
}

// Evaluate evaluates an object once: it reads its target and the usage of its pods, sets the scale of the
// target if that is due, and writes the status of the object. If refusal is not nil, the target is not read, and
// the status says why. An error is also in the status and the events. Evaluate may be called for several objects
// at the same time.
func (c *Controller) Evaluate(ctx context.Context, in Namespace, a *autoscalingv2.HorizontalPodAutoscaler, refusal error) error {
	a = a.DeepCopy()
	a.Namespace = in.joined()
	key := a.Namespace + "/" + a.Name
	c.objects.set(key, a)
	defer c.objects.set(key, nil)
	c.objects.handler.OnAdd(a, false) // so that the pods of several are noticed
	e := &evaluation{refusal: refusal}
	_, err := reconcileKey(c.inner, context.WithValue(klog.NewContext(ctx, logr.Discard()), evaluationKey{}, e), key)
	return errors.Join(err, e.unwritten)
}

// An evaluation is in the context of the requests that it makes.
type evaluation struct {
	refusal   error // nil if the target may be scaled
	unwritten error // of the status
}

type evaluationKey struct{}

func evaluationOf(ctx context.Context) *evaluation {
	e, _ := ctx.Value(evaluationKey{}).(*evaluation)
	return e
}

// Forget drops what is remembered about an object that was deleted.
func (c *Controller) Forget(ctx context.Context, in Namespace, name string) {
	a := &autoscalingv2.HorizontalPodAutoscaler{}
	a.Namespace, a.Name = in.joined(), name
	c.objects.handler.OnDelete(a)
	_, _ = reconcileKey(c.inner, klog.NewContext(ctx, logr.Discard()), a.Namespace+"/"+name) // which finds no object
}

// reconcileKey evaluates the object at a key. Upstream calls it only from its own queue, which is not fair to
// tenants.
//
// At the next minor version: look at reconcileKey in horizontal.go of the package.
//
//go:linkname reconcileKey k8s.io/kubernetes/pkg/controller/podautoscaler.(*HorizontalController).reconcileKey
func reconcileKey(c *podautoscaler.HorizontalController, ctx context.Context, key string) (deleted bool, err error)

// objects holds the HorizontalPodAutoscalers under evaluation.
type objects struct {
	mu sync.Mutex
	of map[string]*autoscalingv2.HorizontalPodAutoscaler // by key; guarded by mu

	handler handler
}

func (o *objects) set(key string, a *autoscalingv2.HorizontalPodAutoscaler) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[key] = a; a == nil {
		delete(o.of, key)
	}
}

func (o *objects) get(key string) *autoscalingv2.HorizontalPodAutoscaler {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[key]
}
