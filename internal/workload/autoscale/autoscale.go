// Package autoscale evaluates HorizontalPodAutoscalers. It hides how their targets are found and scaled, and
// that evaluations share what they read of physical clusters.
package autoscale

import (
	"context"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/upstream/autoscaler"
	"github.com/unforked/kcp/internal/workload/pods"
)

// Period is the default time between two evaluations of an object, that of Kubernetes.
const Period = autoscaler.Period

// A Source is what evaluations read and write.
type Source struct {
	// Config returns a configuration for clients of a logical cluster, which may do anything there.
	Config func(kcp.ClusterName) (*rest.Config, error)
	// MayScale reports whether the objects of a resource may be targets.
	MayScale func(kcp.ClusterName, schema.GroupResource) bool
	// Measure returns pods of a namespace, and their usage.
	Measure func(ctx context.Context, namespace kcp.Key, selector labels.Selector) (*pods.Measurement, error)
}

// A Scaler evaluates HorizontalPodAutoscalers. It uses no goroutine and no memory before the first one.
type Scaler struct {
	controller func() *autoscaler.Controller
	world      *world
}

// New returns a Scaler, which ends with ctx.
func New(ctx context.Context, s Source) *Scaler {
	w := &world{Source: s, ctx: ctx, measured: map[kcp.Key]*namespace{}, sending: map[string]int{}}
	return &Scaler{world: w, controller: sync.OnceValue(func() *autoscaler.Controller { return autoscaler.New(ctx, w) })}
}

// deadline is how long an evaluation may take.
const deadline = Period

// Evaluate evaluates the object at key once. If refusal is not nil, it only writes that into the status. An error
// is also in the status and the events.
func (s *Scaler) Evaluate(ctx context.Context, key kcp.Key, a *autoscalingv2.HorizontalPodAutoscaler, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	defer s.world.enter(namespaceOf(key))()
	return s.controller().Evaluate(ctx, in(key), a, refusal)
}

// Forget drops what is remembered about the object at key, which was deleted after it had been evaluated.
func (s *Scaler) Forget(ctx context.Context, key kcp.Key) {
	s.controller().Forget(ctx, in(key), key.Name)
}

func in(key kcp.Key) autoscaler.Namespace {
	return autoscaler.Namespace{Cluster: string(key.Cluster), Name: key.Namespace}
}

func namespaceOf(key kcp.Key) kcp.Key {
	key.Name = ""
	return key
}

// fresh is how long evaluations in one namespace share what one of them measured.
const fresh = 5 * time.Second
