package hooks

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/request/fair"
)

// A costly policy computes for a time, and records how many do so at the same time.
type costly struct {
	validating.Validator
	takes time.Duration

	mu        sync.Mutex
	now, most int // guarded by mu
	cut       int // evaluations whose context had ended; guarded by mu
}

func (c *costly) Validate(ctx context.Context, _ schema.GroupVersionResource, _ *admission.VersionedAttributes, _ runtime.Object, _ *corev1.Namespace, _ int64, _ authorizer.Authorizer) validating.ValidateResult {
	c.mu.Lock()
	if ctx.Err() != nil {
		c.cut++
	}
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	<-time.After(c.takes)
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
	return validating.ValidateResult{}
}

// evaluate evaluates a policy several times for one request.
func (c *costly) evaluate(shares *fair.Shares, times int) error {
	w := shares.Begin()
	defer w.End()
	w.For("tenant")
	ctx := fair.With(context.Background(), w)
	if err := w.Compute(ctx, fair.Light); err != nil {
		return err
	}
	ctx, p, cancel := newYielder(ctx)
	defer cancel()
	for range times {
		yieldingValidator{c, p}.Validate(ctx, schema.GroupVersionResource{}, nil, nil, nil, 0, nil)
	}
	return p.late
}

// After its first evaluation, a request with costly policies computes while no other such request
// does. The time that it waits is not that of its policies.
func TestCostlyPoliciesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, policies = 4, 10
		shares := fair.New(fair.Limits{Light: 4, LightEach: 4, Heavy: 1, HeavyEach: 1, Waiting: 10, Timeout: time.Hour})
		c := &costly{takes: policyTime / (policies + 1)}
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				if err := c.evaluate(shares, 1); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if c.most != requests {
			t.Errorf("%d requests evaluate their first policy at the same time", c.most)
		}
		<-time.After(time.Hour) // the tenant is no longer slow
		c.most = 0
		var started sync.WaitGroup
		for i := range requests {
			started.Go(func() {
				<-time.After(time.Duration(i) * time.Second) // the next one finds the seats of light requests free
				if err := c.evaluate(shares, policies); err != nil {
					t.Error(err)
				}
			})
		}
		started.Wait()
		if c.most > 2 || c.cut > 0 { // one of them with its first policy
			t.Errorf("%d requests evaluate policies at the same time, %d evaluations are cut", c.most, c.cut)
		}
	})
}

// Policies that take longer than they may are cut. A request that waits for too long is refused.
func TestPoliciesAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := fair.New(fair.Limits{Light: 4, LightEach: 4, Heavy: 1, HeavyEach: 1, Waiting: 10, Timeout: 2 * time.Second})
		c := &costly{takes: time.Second}
		if err := c.evaluate(shares, 7); err != nil || c.cut == 0 {
			t.Errorf("%d evaluations are cut, %v", c.cut, err)
		}
		c.takes = 3 * time.Second
		var all sync.WaitGroup
		var mu sync.Mutex
		var refused []error
		for range 2 {
			all.Go(func() {
				err := c.evaluate(shares, 2)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refused = append(refused, err)
				}
			})
		}
		all.Wait()
		if len(refused) != 1 || !apierrors.IsTooManyRequests(refused[0]) {
			t.Errorf("refused: %v", refused)
		}
	})
}
