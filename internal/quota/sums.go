package quota

import (
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
)

// sums are what each cluster stores, and the bytes of each tenant.
type sums struct {
	clusters shrink.Map[cluster.Name, held]
	tenants  shrink.Map[cluster.Name, int64]
}

// held is what a cluster stores, and the tenant for which the bytes count.
type held struct {
	tenant         cluster.Name
	bytes, objects int64
}

func newSums() *sums { return &sums{} }

// add adds objects and bytes to a cluster, and the bytes to its tenant. If the bytes of the cluster counted for
// another tenant, it moves them: a cluster has objects before its tenant is known.
func (s *sums) add(c, tenant cluster.Name, objects, bytes int64) {
	s.move(c, tenant)
	h, _ := s.clusters.Get(c)
	h = held{tenant, h.bytes + bytes, h.objects + objects}
	s.count(tenant, bytes)
	if h.bytes == 0 && h.objects == 0 {
		s.clusters.Drop(c)
		return
	}
	s.clusters.Put(c, h)
}

// move makes the bytes of a cluster count for a tenant.
func (s *sums) move(c, tenant cluster.Name) {
	h, ok := s.clusters.Get(c)
	if !ok || h.tenant == tenant {
		return
	}
	s.count(h.tenant, -h.bytes)
	s.count(tenant, h.bytes)
	s.clusters.Put(c, held{tenant, h.bytes, h.objects})
}

func (s *sums) count(tenant cluster.Name, bytes int64) {
	n, _ := s.tenants.Get(tenant)
	if n += bytes; n == 0 {
		s.tenants.Drop(tenant)
		return
	}
	s.tenants.Put(tenant, n)
}

// resettled returns a copy in which clusters count for their current tenants.
func (s *sums) resettled(of func(cluster.Name) cluster.Name) *sums {
	to := newSums()
	for c, h := range s.clusters.All() {
		to.add(c, of(c), h.objects, h.bytes)
	}
	return to
}
