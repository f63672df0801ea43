package store

import (
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// stamps shares one annotations map among all cached objects of a cluster that
// have no other annotation: a map costs more than many an object. The maps are
// never changed after they were made.
type stamps struct {
	exists func(cluster.Name) bool // as far as is known

	mu      sync.RWMutex
	maps    shrink.Map[cluster.Name, map[string]string]
	sweepAt int
}

func newStamps(exists func(cluster.Name) bool) *stamps {
	return &stamps{exists: exists, sweepAt: 1024}
}

func (s *stamps) only(c cluster.Name) map[string]string {
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

// sweep drops the maps of clusters that are gone. A cache may have asked for one
// after the end of its cluster, to tell its watchers.
func (s *stamps) sweep() {
	s.maps.DropFunc(func(c cluster.Name, _ map[string]string) bool { return !s.exists(c) })
	s.sweepAt = max(1024, 2*s.maps.Len())
}

// drop forgets the map of a cluster that is gone, and reports whether there was one.
func (s *stamps) drop(c cluster.Name) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maps.Drop(c)
}
