package consumers

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp"
)

// A write in a workspace counts for the tenant, who may write 4 MiB per second. Reports of physical clusters get half
// of that: their owners may be other tenants, and must not keep this one from writing.
const (
	reportRate  = 2 << 20  // bytes per second
	reportBurst = 64 << 20 // bytes at once
	swept       = 1024     // tenants, above which those that are idle are forgotten
)

// spendings limit what the physical clusters of a compute workspace make the server write, by the tenant of the
// consumers. The zero value is ready for use.
type spendings struct {
	mu sync.Mutex
	of map[kcp.ClusterName]*rate.Limiter // guarded by mu
}

// spend counts bytes that are about to be written for a tenant. The error is a Status.
func (s *spendings) spend(tenant kcp.ClusterName, now time.Time, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.of[tenant]
	if l == nil {
		if s.of == nil {
			s.of = map[kcp.ClusterName]*rate.Limiter{}
		}
		if len(s.of) >= swept {
			for t, l := range s.of {
				if l.TokensAt(now) >= reportBurst {
					delete(s.of, t)
				}
			}
		}
		l = rate.NewLimiter(reportRate, reportBurst)
		s.of[tenant] = l
	}
	if l.AllowN(now, n) {
		return nil
	}
	return apierrors.NewTooManyRequests("the physical clusters report more than 2 MiB per second about the workloads of a tenant", 1)
}
