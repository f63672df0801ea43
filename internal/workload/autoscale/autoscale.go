// Package autoscale evaluates HorizontalPodAutoscalers. It hides how their targets are found and scaled, and
// that what one evaluation reads of physical clusters is read once.
package autoscale

import (
	"context"
	"sync"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/upstream/autoscaler"
	"github.com/unforked/kcp/internal/workload/pods"
)

// A Source is what evaluations read and write.
type Source struct {
	// Config returns a configuration for clients of a logical cluster, which may do anything there.
	Config func(kcp.ClusterName) (*rest.Config, error)
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
	w := &world{Source: s, ctx: ctx, measured: map[kcp.Key]map[string]*measured{}}
	return &Scaler{world: w, controller: sync.OnceValue(func() *autoscaler.Controller { return autoscaler.New(ctx, w) })}
}

// Evaluate evaluates the object at key once. The conditions in its status, and events, say what the error says.
func (s *Scaler) Evaluate(ctx context.Context, key kcp.Key, a *autoscalingv2.HorizontalPodAutoscaler) error {
	defer s.world.forget(namespaceOf(key))
	return s.controller().Evaluate(ctx, autoscaler.Namespace{Cluster: string(key.Cluster), Name: key.Namespace}, a)
}

// Forget drops what is remembered about the object at key, which was deleted after it had been evaluated.
func (s *Scaler) Forget(ctx context.Context, key kcp.Key) {
	s.controller().Forget(ctx, autoscaler.Namespace{Cluster: string(key.Cluster), Name: key.Namespace}, key.Name)
}

func namespaceOf(key kcp.Key) kcp.Key {
	key.Name = ""
	return key
}
