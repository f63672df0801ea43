package store

import (
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// stamps shares one annotations map among all cached objects of a cluster that
// have no other annotation: a map costs more than many an object. The maps are
// never changed after they were made.
type stamps struct {
	mu   sync.RWMutex
	maps map[cluster.Name]map[string]string
}

func newStamps() *stamps { return &stamps{maps: map[cluster.Name]map[string]string{}} }

func (s *stamps) only(c cluster.Name) map[string]string {
	s.mu.RLock()
	m := s.maps[c]
	s.mu.RUnlock()
	if m != nil {
		return m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m = s.maps[c]; m == nil {
		m = map[string]string{cluster.Annotation: string(c)}
		s.maps[c] = m
	}
	return m
}

// forget drops the map of a cluster that is gone.
func (s *stamps) forget(c cluster.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.maps, c)
}
