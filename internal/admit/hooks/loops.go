package hooks

import (
	"context"
	"errors"
	"maps"
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
	// loopPause is how long deletions by loops that go through the hooks of a cluster are refused
	// after these hooks took longer.
	loopPause = time.Minute
	// maxSlow is the number of such clusters of one tenant after which deletions in its other
	// clusters are refused, too. One broken webhook must not stop them. A tenant with slow hooks in
	// many clusters must not take more of the loops' time than a tenant with few.
	maxSlow = 3
)

// slow are the clusters whose hooks took too long for a deletion by a loop.
type slow struct {
	tenant func(cluster.Name) cluster.Name

	mu    sync.Mutex
	until map[cluster.Name]map[cluster.Name]time.Time // of clusters by tenant
}

func newSlow(tenant func(cluster.Name) cluster.Name) *slow {
	return &slow{tenant: tenant, until: map[cluster.Name]map[cluster.Name]time.Time{}}
}

// tooSlow is the error of a deletion whose hooks took too long. It has no time to retry after, for
// which clients would wait.
func tooSlow() error {
	return apierrors.NewServiceUnavailable("the webhooks or policies that apply to this deletion did not answer within " + loopTime.String() + "; the server asks them again within a minute")
}

// limited runs the hooks of a deletion by a loop, unless those of the cluster, or of several
// others of its tenant, were slow.
func (s *slow) limited(ctx context.Context, c cluster.Name, run func(context.Context) error) error {
	tenant := s.tenant(c)
	if err := s.paused(tenant, c); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, loopTime)
	defer cancel()
	err := run(limited)
	if err == nil || !errors.Is(limited.Err(), context.DeadlineExceeded) {
		return err
	}
	s.pause(tenant, c)
	return tooSlow()
}

// paused returns an error if deletions in a cluster of a tenant are refused now.
func (s *slow) paused(tenant, c cluster.Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(tenant, time.Now())
	if _, known := s.until[tenant][c]; known {
		return tooSlow()
	}
	if len(s.until[tenant]) >= maxSlow {
		return apierrors.NewServiceUnavailable("the webhooks or policies of several workspaces of one tenant did not answer within " + loopTime.String() + "; the server asks those that apply to this deletion within a minute")
	}
	return nil
}

func (s *slow) pause(tenant, c cluster.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for other := range s.until { // there are few
		s.expire(other, now)
	}
	if s.until[tenant] == nil {
		s.until[tenant] = map[cluster.Name]time.Time{}
	}
	s.until[tenant][c] = now.Add(loopPause)
}

// expire forgets the clusters of a tenant whose pause has ended. The caller holds mu.
func (s *slow) expire(tenant cluster.Name, now time.Time) {
	of := s.until[tenant]
	maps.DeleteFunc(of, func(_ cluster.Name, until time.Time) bool { return !now.Before(until) })
	if len(of) == 0 {
		delete(s.until, tenant)
	}
}

// byLoop runs the hooks for a write of one of the server's own loops. These act on objects of
// every cluster with all rights, so hooks neither change nor refuse what they write. Only a
// deletion on a tenant's behalf, such as one of garbage collection, can be refused as in
// Kubernetes.
func (h *Hooks) byLoop(ctx context.Context, r admit.Request, o admission.ObjectInterfaces) error {
	if r.GetOperation() != admission.Delete {
		return nil
	}
	_, err := h.each(ctx, r, o, h.slow.within(h.validators.dispatch), h.slow.within(h.validating.dispatch))
	return err
}

// within returns a dispatch to hooks of which those of each cluster are limited. A provider whose
// hooks are slow so holds up deletions of its own resources only, and all its consumers together
// take no more of the loops' time than one.
func (s *slow) within(run dispatch) dispatch {
	return func(ctx context.Context, from source, r admit.Request, o admission.ObjectInterfaces) (has bool, err error) {
		by := from.cluster
		if from.above { // its policies are evaluated for the cluster of the request
			by = r.Cluster
		}
		err = s.limited(ctx, by, func(ctx context.Context) (err error) {
			has, err = run(ctx, from, r, o)
			return err
		})
		return has, err
	}
}
