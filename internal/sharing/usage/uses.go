package usage

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// A use is a version in which a consumer requests a resource.
type use struct {
	subject
	version string
}

// useNotes is where the day of the last request in each version is stored.
func useNotes() keys.Resource { return keys.Resource{Root: keys.System, Resource: "useddays"} }

// key returns where the day is stored. A version has no dot.
func (u use) key() keys.Key {
	return useNotes().Key(cluster.Admin, string(u.consumer), strings.Join([]string{u.identity, u.version, u.Resource, u.Group}, "."))
}

// parseUse is the inverse of key.
func parseUse(k keys.Key) (use, bool) {
	parts := strings.SplitN(k.Name, ".", 4)
	if k.Namespace == "" || len(parts) != 4 {
		return use{}, false
	}
	return use{subject{cluster.Name(k.Namespace), schema.GroupResource{Resource: parts[2], Group: parts[3]}, parts[0]}, parts[1]}, true
}

// uses are the days on which versions were requested: those in etcd, and those of this process
// today. A crash may lose those of the last interval. Later requests of the day make up for it.
type uses struct {
	mu       *sync.Mutex
	stored   map[subject]map[string]string // day by version
	building map[subject]map[string]string // during a rebuild, else nil
	today    int64                         // days since 1970
	seen     map[use]struct{}              // today, in this process
	unsaved  []use                         // of those
}

const secondsOfDay = 24 * 60 * 60

// dayText returns a day, which is a number of days since 1970, as it is stored.
func dayText(day int64) string { return time.Unix(day*secondsOfDay, 0).UTC().Format(time.DateOnly) }

func newUses() uses { return uses{mu: &sync.Mutex{}, stored: map[subject]map[string]string{}} }

func (u *uses) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.building = map[subject]map[string]string{}
}

func (u *uses) done() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stored, u.building = u.building, nil
	clear(u.seen) // some may have been deleted
}

// learn takes in what some process has written.
func (u *uses) learn(e feed.Event) {
	one, ok := parseUse(e.Key)
	if !ok {
		klog.Background().Error(nil, "Used version is ignored: malformed key", "key", e.Key.String())
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	to := u.stored
	if u.building != nil {
		to = u.building
	}
	of := to[one.subject]
	switch {
	case !e.Deleted() && of == nil:
		to[one.subject] = map[string]string{one.version: string(e.Value)}
	case !e.Deleted():
		of[one.version] = string(e.Value)
	default:
		delete(u.seen, one) // a consumer that binds again is written again
		if delete(of, one.version); len(of) == 0 {
			delete(to, one.subject)
		}
	}
}

// of returns the versions that a consumer has used of a resource.
func (u *uses) of(s subject) []apisv1alpha2.VersionUsage {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []apisv1alpha2.VersionUsage
	for version, day := range u.stored[s] {
		all = append(all, apisv1alpha2.VersionUsage{Version: version, LastRequest: day})
	}
	slices.SortFunc(all, func(a, b apisv1alpha2.VersionUsage) int { return strings.Compare(a.Version, b.Version) })
	return all
}

// all returns the day of each use.
func (u *uses) all() map[use]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := map[use]string{}
	for s, of := range u.stored {
		for version, day := range of {
			all[use{s, version}] = day
		}
	}
	return all
}

// Requested records that a consumer requests a resource in a version.
func (m *Meter) Requested(c cluster.Name, r keys.Resource, version string) {
	if !m.measures(r) {
		return
	}
	u := &m.uses
	today := m.around.now().Unix() / secondsOfDay
	one := use{subjectOf(c, r), version}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.today != today {
		u.today, u.seen = today, map[use]struct{}{}
	}
	if _, seen := u.seen[one]; seen {
		return
	}
	u.seen[one] = struct{}{}
	if u.stored[one.subject][version] != dayText(today) {
		u.unsaved = append(u.unsaved, one)
	}
}

// WriteUses writes which versions were requested in this process since the last call. Each is
// written once a day.
func (m *Meter) WriteUses(ctx context.Context) error {
	m.uses.mu.Lock()
	all, today := m.uses.unsaved, m.uses.today
	m.uses.unsaved = nil
	m.uses.mu.Unlock()
	for i := 0; i < len(all); i += notesAtOnce {
		some := all[i:min(i+notesAtOnce, len(all))]
		notes := make([]store.Note, len(some))
		for j, one := range some {
			notes[j] = store.Note{Key: one.key(), Value: []byte(dayText(today))}
		}
		if _, err := m.config.Store.WriteNotes(ctx, notes); err != nil {
			m.uses.mu.Lock()
			defer m.uses.mu.Unlock()
			m.uses.unsaved = append(m.uses.unsaved, all[i:]...)
			return err
		}
	}
	return nil
}

// forgetUses deletes the days of consumers that no longer have the resource, and those before
// the retention.
func (m *Meter) forgetUses(ctx context.Context) error {
	oldest := m.around.now().Add(-retention).UTC().Format(time.DateOnly)
	var gone []store.Note
	for one, day := range m.uses.all() {
		if _, bound := m.around.bound(one.subject); !bound || day < oldest {
			gone = append(gone, store.Note{Key: one.key()})
		}
	}
	for some := range slices.Chunk(gone, notesAtOnce) {
		if _, err := m.config.Store.WriteNotes(ctx, some); err != nil {
			return err
		}
	}
	return nil
}
