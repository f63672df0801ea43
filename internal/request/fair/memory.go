package fair

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Memory limits the estimated bytes that requests hold. If Tenant is 0, there is no limit.
type Memory struct {
	Free    int64 // of each request; these bytes do not count
	Tenant  int64 // of the requests of one tenant
	All     int64 // of all requests
	Reserve int64 // of one tenant; All does not limit these
}

// memory counts the bytes that requests hold.
type memory struct {
	limits Memory

	mu  sync.Mutex
	all int64
	of  map[string]int64
}

func newMemory(l Memory) *memory { return &memory{limits: l, of: map[string]int64{}} }

// grow adds more bytes of a request, for which it has counted bytes before. An error is a
// Status for the client; then nothing is added.
func (m *memory) grow(tenant string, more, counted int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, l := m.of[tenant]+more, m.limits
	switch {
	case more <= 0 || now <= l.Reserve || l.Tenant == 0:
	case counted+more > l.Tenant:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the request would take more than %d MiB of memory; list in pages, with limit, or send smaller objects", l.Tenant>>20))
	case now > l.Tenant:
		return apierrors.NewTooManyRequests(fmt.Sprintf("your requests, with those of your workspaces, would take more than %d MiB of memory at once; send fewer at a time, or list in pages, with limit", l.Tenant>>20), 1)
	case m.all+more > l.All:
		return apierrors.NewTooManyRequests(fmt.Sprintf("all requests to this server would take more than %d MiB of memory at once; try again, or list in pages, with limit", l.All>>20), 1)
	}
	m.add(tenant, more)
	return nil
}

// shrink subtracts bytes of a tenant.
func (m *memory) shrink(tenant string, bytes int64) {
	if bytes == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(tenant, -bytes)
}

// move moves bytes from one tenant to another.
func (m *memory) move(from, to string, bytes int64) {
	if bytes == 0 || from == to {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(from, -bytes)
	m.add(to, bytes)
}

// add adds bytes to a tenant. The caller holds the lock.
func (m *memory) add(tenant string, bytes int64) {
	m.all += bytes
	if m.of[tenant] += bytes; m.of[tenant] == 0 {
		delete(m.of, tenant)
	}
}

func (m *memory) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all == 0 && len(m.of) == 0
}
