// Package autoscale evaluates the HorizontalPodAutoscalers of the consumers of a compute workspace. It hides how
// their targets are found and scaled, and where their pods run. It also hides how many are evaluated at a time, and
// that evaluations share what they read of physical clusters.
package autoscale

import (
	"context"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/upstream/autoscaler"
)

// Period is the default time between two evaluations of an object, that of Kubernetes.
const Period = autoscaler.Period

// A scaler evaluates HorizontalPodAutoscalers. It uses no goroutine and no memory before the first one.
type scaler struct {
	controller func() *autoscaler.Controller
	world      *world
}

// newScaler returns a scaler, which ends with ctx.
func newScaler(ctx context.Context, o Options) *scaler {
	w := &world{Options: o, ctx: ctx, measured: map[kcp.Key]*namespace{}, sending: map[string]int{}}
	return &scaler{world: w, controller: sync.OnceValue(func() *autoscaler.Controller { return autoscaler.New(ctx, w) })}
}

// deadline is how long an evaluation may take.
const deadline = Period

// evaluate evaluates the object at key once. If refusal is not nil, it only writes that into the status. An error
// is also in the status and the events.
func (s *scaler) evaluate(ctx context.Context, key kcp.Key, a *autoscalingv2.HorizontalPodAutoscaler, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	defer s.world.enter(namespaceOf(key))()
	return s.controller().Evaluate(ctx, in(key), a, refusal)
}

// forget drops what is remembered about the object at key, which was deleted after it had been evaluated.
func (s *scaler) forget(ctx context.Context, key kcp.Key) {
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
