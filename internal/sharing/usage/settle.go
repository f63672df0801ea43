package usage

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
)

const (
	// retention is how long the record of a consumer stays after it no longer has the resource.
	retention = 90 * 24 * time.Hour
	// maxEnded is the maximum number of such records of one tenant, over all exports. The oldest
	// go first. It limits what a tenant can leave behind in etcd that its quota does not count.
	maxEnded = 10_000
)

// A change is a record to write, or to delete.
type change struct {
	subject
	*record
	drop    bool
	changes int // of the live record
}

// settled records which consumers no longer have their resource, and returns all changes since
// the last write, with the time up to which they are complete. That is 0 if changes may be
// missing.
func (m *Meter) settled() (at int64, all []change) {
	drops, updates := m.settle(m.all())
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.measuring {
		return 0, nil
	}
	at = m.clock()
	for s, update := range updates {
		update(m.changing(s, at), at)
	}
	for _, s := range drops {
		if m.live[s] == nil { // or else it is used again
			all = append(all, change{subject: s, drop: true})
		}
	}
	for s, l := range m.live {
		record := l.record
		all = append(all, change{s, &record, false, l.changes})
	}
	m.floor = at
	return at, all
}

// A state is a copy of a record.
type state struct {
	subject
	record
	live bool
}

// all returns all records.
func (m *Meter) all() []state {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []state
	for _, rows := range m.rows {
		for s, r := range rows {
			if m.live[s] == nil {
				all = append(all, state{s, *r.record, false})
			}
		}
	}
	for s, l := range m.live {
		all = append(all, state{s, l.record, true})
	}
	return all
}

// settle returns the records to delete, and those to update, with the function that does. It
// holds no lock: it asks for the binding of each record.
func (m *Meter) settle(seen []state) (drops []subject, updates map[subject]func(*live, int64)) {
	updates = map[subject]func(*live, int64){}
	oldest := m.around.now().Add(-retention).UnixMilli()
	ended := map[cluster.Name][]state{}
	for _, r := range seen {
		export, bound := m.around.bound(r.subject)
		has := bound || r.Objects > 0
		update := r.update(export, bound, has)
		switch {
		case r.Ended > 0 && !has && (r.Ended < oldest || !m.around.exported(r.identity)):
			drops = append(drops, r.subject)
		case r.Ended > 0 && !has:
			ended[r.Tenant] = append(ended[r.Tenant], r)
		case update || r.live:
			updates[r.subject] = func(l *live, at int64) {
				m.name(l, r.consumer)
				if bound {
					l.Exports = l.through(export)
				}
				switch {
				case has:
					l.Ended = 0
				case l.Objects == 0:
					l.Ended = cmp.Or(l.Ended, at)
				}
			}
		}
	}
	for tenant, of := range ended {
		if len(of) <= maxEnded {
			continue
		}
		klog.Background().Info("Too many consumers of a tenant have ended; the usage of the first is deleted", "cluster", tenant, "maximum", maxEnded)
		slices.SortFunc(of, func(a, b state) int { return cmp.Compare(a.Ended, b.Ended) })
		for _, r := range of[:len(of)-maxEnded] {
			drops = append(drops, r.subject)
		}
	}
	return drops, updates
}

// update reports whether the record has another state of the binding.
func (r record) update(export exports.Name, bound, has bool) bool {
	return has == (r.Ended > 0) || bound && (len(r.Exports) == 0 || r.Exports[len(r.Exports)-1] != export)
}
