package fleet

import (
	"fmt"
	"sync"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/engine"
)

const (
	// mostTargets is the maximum of connected targets of one compute workspace, and mostOfTenant that of
	// all compute workspaces of a tenant. Each has a connection.
	mostTargets  = 400
	mostOfTenant = 1000
	// mostObjects is the maximum of objects that the server keeps in memory for the targets of a tenant,
	// in push mode.
	mostObjects = 100_000
)

// uses has what the tenants use of this server.
type uses struct {
	mu sync.Mutex
	of map[kcp.ClusterName]*use // by tenant; guarded by mu
}

// A use is what the targets of one tenant use.
type use struct {
	tenant  kcp.ClusterName
	targets int // guarded by uses.mu
	objects engine.Bound
}

// take counts a target of a tenant. It returns nil if the tenant has too many.
func (u *uses) take(tenant kcp.ClusterName) *use {
	u.mu.Lock()
	defer u.mu.Unlock()
	of := u.of[tenant]
	if of == nil {
		of = &use{tenant: tenant, objects: engine.Bound{Most: mostObjects}}
		u.of[tenant] = of
	}
	if of.targets >= mostOfTenant {
		return nil
	}
	of.targets++
	return of
}

// give takes back what take counted.
func (u *uses) give(of *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if of.targets--; of.targets == 0 {
		delete(u.of, of.tenant)
	}
}

// reset forgets everything.
func (u *uses) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.of)
}

var (
	errTooManyHere = fmt.Errorf("a workspace has %d physical clusters at most; register this one in another workspace", mostTargets)
	errTooMany     = fmt.Errorf("all workspaces of a tenant have %d physical clusters at most together; remove others first, with: kubectl kcp workload unsync NAME", mostOfTenant)
)
