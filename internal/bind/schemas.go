package bind

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

// schemas has the UID of each APIResourceSchema. It is a follower of the change feed.
type schemas struct {
	mu       sync.RWMutex
	byKey    map[keys.Key]string
	byUID    map[string]keys.Key
	building map[keys.Key]string // during a rebuild, else nil
	deleted  func(uid string)
	changed  func(keys.Key) // of a schema that existed before
}

func newSchemas(f *feed.Feed) *schemas {
	s := &schemas{byKey: map[keys.Key]string{}, byUID: map[string]keys.Key{}}
	f.Follow(s)
	return s
}

// get returns the UID of a schema, "" if there is none.
func (s *schemas) get(c cluster.Name, name string) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKey[SchemaResource().Key(c, "", name)]
}

// has reports whether a schema with a UID exists.
func (s *schemas) has(uid string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.byUID[uid]
	return ok
}

// Reset implements [feed.Follower].
func (s *schemas) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.building = map[keys.Key]string{}
}

// Done implements [feed.Follower].
func (s *schemas) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey, s.building = s.building, nil
	clear(s.byUID)
	for k, uid := range s.byKey {
		s.byUID[uid] = k
	}
}

// Apply implements [feed.Follower].
func (s *schemas) Apply(e feed.Event) {
	if e.Key.Resource != SchemaResource() {
		return
	}
	uid := ""
	if !e.Deleted() {
		m, err := e.Metadata(context.Background())
		if err != nil {
			klog.Background().Error(err, "Schema is ignored", "key", e.Key.String())
		}
		uid = string(m.UID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.building != nil {
		s.building[e.Key] = uid
		return
	}
	before, ok := s.byKey[e.Key]
	if ok && s.changed != nil {
		s.changed(e.Key)
	}
	if ok && before != uid {
		delete(s.byUID, before)
		if s.deleted != nil {
			s.deleted(before)
		}
	}
	if uid == "" {
		delete(s.byKey, e.Key)
		return
	}
	s.byKey[e.Key], s.byUID[uid] = uid, e.Key
}
