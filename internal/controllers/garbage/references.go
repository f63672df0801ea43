package garbage

import (
	"maps"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// recountEvery is the interval after which the references of tenants are counted again.
const recountEvery = 2 * time.Second

// References counts the owner references of the objects of tenants: the garbage collector keeps
// each in memory. Methods may be called concurrently.
type References struct {
	collector *Collector
	tenant    func(cluster.Name) cluster.Name

	mu      sync.Mutex
	counted time.Time            // guarded by mu
	sums    map[cluster.Name]int // by tenant, with what was added since; guarded by mu
}

// NewReferences returns counters of the references that a collector keeps. tenant returns the
// tenant of a cluster.
func NewReferences(c *Collector, tenant func(cluster.Name) cluster.Name) *References {
	return &References{collector: c, tenant: tenant}
}

// Add adds the references of an object that is about to be written in cluster c. It returns false,
// and adds nothing, if the tenant of c would have more than most.
func (r *References) Add(c cluster.Name, n, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.counted) > recountEvery {
		r.sums, r.counted = map[cluster.Name]int{}, time.Now()
		for of, links := range r.collector.links() {
			r.sums[r.tenant(of)] += links
		}
	}
	of := r.tenant(c)
	if r.sums[of]+n > most {
		return false
	}
	r.sums[of] += n
	return true
}

// links returns the number of owner references in each cluster.
func (g *Collector) links() map[cluster.Name]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.graph.links)
}
