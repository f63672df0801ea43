package hooks

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// loopTime limits the hooks of one deletion by a loop of the server. Loops have few
	// workers, which all tenants share.
	loopTime = 3 * time.Second
	// loopPause is how long deletions by loops in a cluster are refused after its hooks took
	// longer.
	loopPause = time.Minute
)

// slow are the clusters whose hooks took too long for a deletion by a loop.
type slow struct {
	mu    sync.Mutex
	until map[cluster.Name]time.Time
	now   func() time.Time
}

func newSlow() *slow { return &slow{until: map[cluster.Name]time.Time{}, now: time.Now} }

// tooSlow is the error of a deletion whose hooks took too long. It has no time to retry after, for
// which clients would wait.
func tooSlow() error {
	return apierrors.NewServiceUnavailable("the webhooks or policies that apply to this deletion did not answer within " + loopTime.String() + "; the server asks them again within a minute")
}

// limited runs the hooks of a deletion by a loop, unless those of the cluster were slow.
func (s *slow) limited(ctx context.Context, c cluster.Name, run func(context.Context) error) error {
	s.mu.Lock()
	until, known := s.until[c]
	if known && !s.now().Before(until) {
		delete(s.until, c)
		known = false
	}
	s.mu.Unlock()
	if known {
		return tooSlow()
	}
	limited, cancel := context.WithTimeout(ctx, loopTime)
	defer cancel()
	err := run(limited)
	if err == nil || !errors.Is(limited.Err(), context.DeadlineExceeded) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for other, until := range s.until { // there are few
		if !now.Before(until) {
			delete(s.until, other)
		}
	}
	s.until[c] = now.Add(loopPause)
	return tooSlow()
}

// byLoop runs the hooks for a write of one of the server's own loops. These act on objects of
// every cluster with all rights, so hooks neither change nor refuse what they write. Only a
// deletion on a tenant's behalf, such as one of garbage collection, can be refused as in
// Kubernetes.
func (h *Hooks) byLoop(ctx context.Context, r admit.Request, o admission.ObjectInterfaces) error {
	if r.GetOperation() != admission.Delete {
		return nil
	}
	return h.slow.limited(ctx, r.Cluster, func(ctx context.Context) error {
		_, err := h.each(ctx, r, o, h.validators.dispatch, h.validating.dispatch)
		return err
	})
}
