package exports

import (
	"context"
	"strings"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// schemas has the UID, the revision and the served versions of each APIResourceSchema. It is a follower of the change feed.
type schemas struct {
	mu       sync.RWMutex
	byKey    map[keys.Key]schemaRow
	byUID    map[string]keys.Key
	building map[keys.Key]schemaRow // during a rebuild, else nil
	deleted  func(uid string)
	changed  func(keys.Key)     // of a schema that existed before
	touched  func(cluster.Name) // of every schema that changes, new ones included
}

type schemaRow struct {
	uid      string
	revision int64
	versions string // separated by commas; equal ones are shared
}

func newSchemas(f *feed.Feed) *schemas {
	s := &schemas{byKey: map[keys.Key]schemaRow{}, byUID: map[string]keys.Key{}}
	f.Follow(s)
	return s
}

// get returns what is known of a schema, the zero value if there is none.
func (s *schemas) get(c cluster.Name, name string) schemaRow {
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
	s.building = map[keys.Key]schemaRow{}
}

// Done implements [feed.Follower].
func (s *schemas) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey, s.building = s.building, nil
	clear(s.byUID)
	for k, r := range s.byKey {
		s.byUID[r.uid] = k
	}
}

// Apply implements [feed.Follower].
func (s *schemas) Apply(e feed.Event) {
	if e.Key.Resource != SchemaResource() {
		return
	}
	var now schemaRow
	if !e.Deleted() {
		var err error
		if now, err = schemaOf(e); err != nil {
			klog.Background().Error(err, "Schema is ignored", "key", e.Key.String())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.building != nil {
		s.building[e.Key] = now
		return
	}
	before, ok := s.byKey[e.Key]
	if ok && s.changed != nil {
		s.changed(e.Key)
	}
	if s.touched != nil {
		s.touched(e.Key.Cluster)
	}
	if ok && before.uid != now.uid {
		delete(s.byUID, before.uid)
		if s.deleted != nil {
			s.deleted(before.uid)
		}
	}
	if now.uid == "" {
		delete(s.byKey, e.Key)
		return
	}
	s.byKey[e.Key], s.byUID[now.uid] = now, e.Key
}

// schemaOf decodes what is needed of a schema.
func schemaOf(e feed.Event) (schemaRow, error) {
	var in struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			Versions []struct {
				Name   string `json:"name"`
				Served bool   `json:"served"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := e.Unmarshal(context.Background(), &in); err != nil {
		return schemaRow{}, err
	}
	var served []string
	for _, v := range in.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return schemaRow{in.Metadata.UID, e.Revision, unique.Make(strings.Join(served, ",")).Value()}, nil
}

// Schema returns the UID of a schema and the revision of its last change, zero values if there is none.
func (x *Exports) Schema(c cluster.Name, name string) (uid string, revision int64) {
	row := x.schemas.get(c, name)
	return row.uid, row.revision
}

// OnSchema makes x call f with the cluster of every APIResourceSchema that changes. f must not block.
// Call it before the change feed starts, and once.
func (x *Exports) OnSchema(f func(cluster.Name)) { x.schemas.touched = f }

// OnChangedSchema makes x call f with the key of every APIResourceSchema that changes, except new
// ones. f must not block. Call it before the change feed starts, and once.
func (x *Exports) OnChangedSchema(f func(keys.Key)) { x.schemas.changed = f }

// OnDeletedSchema makes x call f with the UID of every APIResourceSchema that is deleted. f must not
// block. Call it before the change feed starts, and once.
func (x *Exports) OnDeletedSchema(f func(uid string)) { x.schemas.deleted = f }

// Versions returns the served versions of a resource of an export in cluster c.
func (x *Exports) Versions(c cluster.Name, r apisv1alpha2.ResourceSchema) []string {
	if r.Storage.Native != nil {
		if content, ok := x.definitions.Offers.Find(schema.GroupResource{Group: r.Group, Resource: r.Name}); ok {
			return content.Versions()
		}
		return nil
	}
	all := x.schemas.get(c, r.Schema).versions
	if all == "" {
		return nil
	}
	return strings.Split(all, ",")
}
