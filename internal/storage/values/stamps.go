package values

import (
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
)

// Stamps share one annotations map among all cached objects of a cluster that have no
// other annotation: a map costs more than many an object. The maps never change.
type Stamps struct {
	exists func(cluster.Name) bool // as far as is known

	mu      sync.RWMutex
	maps    shrink.Map[cluster.Name, map[string]string]
	sweepAt int
}

// NewStamps returns empty stamps. They forget a cluster some time after exists reports
// false for it.
func NewStamps(exists func(cluster.Name) bool) *Stamps {
	return &Stamps{exists: exists, sweepAt: 1024}
}

// Of returns the annotations of an object in c that has no others. The map is shared and
// must not be changed.
func (s *Stamps) Of(c cluster.Name) map[string]string {
	s.mu.RLock()
	m, _ := s.maps.Get(c)
	s.mu.RUnlock()
	if m != nil {
		return m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, _ = s.maps.Get(c); m == nil {
		if s.maps.Len() >= s.sweepAt {
			s.sweep()
		}
		m = map[string]string{cluster.Annotation: string(c)}
		s.maps.Put(c, m)
	}
	return m
}

// sweep drops the maps of deleted clusters. A cache may ask for a map after its cluster
// was deleted, for the last events.
func (s *Stamps) sweep() {
	s.maps.DropFunc(func(c cluster.Name, _ map[string]string) bool { return !s.exists(c) })
	s.sweepAt = max(1024, 2*s.maps.Len())
}

// Drop forgets the map of a deleted cluster, and reports whether there was one.
func (s *Stamps) Drop(c cluster.Name) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maps.Drop(c)
}
