// Package usage measures what the consumers of APIExports store, as the basis of bills: for each
// consumer and resource the sum of objects over time, and that of bytes. It hides where the sums
// are kept and how they stay complete: no time is lost or counted twice, whatever ends a process.
//
// All processes follow the records in etcd. The process that runs the loops measures: it follows
// the changes of all objects, and writes the records that changed once per interval. Then it
// writes a mark, the time up to which the records are complete. Reports are as of that time, so
// a later report never has less, from any process. A process that takes over finds what changed
// since the mark by the counts of the ledger, and counts it from the mark on.
package usage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

const (
	// interval is the default of [Config.Every].
	interval = time.Minute
	// notesAtOnce is the number of records that one transaction writes.
	notesAtOnce = etcd.MaxTxnOps / 2
)

// Config configures a [Meter]. The first four fields are required.
type Config struct {
	Store *store.Store
	APIs  *bind.APIs
	Tree  *tree.Tree
	// Requests has the requests of consumers.
	Requests *Requests
	// Every is how often changed records are written. The default is a minute.
	Every time.Duration

	around surroundings // set in tests
}

// surroundings are what a meter needs of the server besides the store.
type surroundings struct {
	now func() time.Time
	// bound returns the export through which a consumer has a resource, and whether it has it.
	bound func(subject) (exports.Name, bool)
	// named returns the path and the tenant of a cluster, and whether it exists.
	named func(cluster.Name) (cluster.Path, cluster.Name, bool)
	// exported reports whether an export has the identity.
	exported func(identity string) bool
}

// around returns the surroundings in a server.
func around(c Config) surroundings {
	return surroundings{
		now: time.Now,
		bound: func(s subject) (exports.Name, bool) {
			_, b := c.APIs.Bindings.Owner(s.consumer, s.GroupResource)
			if b == nil || !slices.ContainsFunc(b.Bound, func(r bind.Bound) bool { return r.GroupResource == s.GroupResource && r.Identity == s.identity }) {
				return exports.Name{}, false
			}
			return b.Export, true
		},
		named: func(n cluster.Name) (cluster.Path, cluster.Name, bool) {
			_, exists := c.Tree.Cluster(n)
			return c.Tree.PathOf(n), c.Tree.Tenant(n), exists
		},
		exported: func(identity string) bool { return len(c.APIs.Exports.KeysBy(identity)) > 0 },
	}
}

// A Meter measures the usage of all exports but the built-in ones. It is a follower of the
// change feed. Methods may be called concurrently.
type Meter struct {
	config  Config
	around  surroundings
	builtIn map[schema.GroupResource]bool
	uses    uses

	mu       sync.Mutex
	rows     table
	building table // during a rebuild, else nil
	until    int64 // the mark
	// measuring is true while this process writes the records and live has all changes since.
	measuring bool
	live      map[subject]*live
	floor     int64 // the earliest time of further changes
}

// A table has the rows of each identity.
type table map[string]map[subject]row

// A row is a stored record. The record is immutable.
type row struct {
	*record
	revision int64
}

// A live record has changes that are not stored.
type live struct {
	record
	changes int
}

// New returns a meter that follows the change feed, which must not have started.
func New(c Config) *Meter {
	c.Every = cmp.Or(c.Every, interval)
	if c.around.now == nil {
		c.around = around(c)
	}
	m := &Meter{config: c, around: c.around, builtIn: map[schema.GroupResource]bool{}, rows: table{}, uses: newUses()}
	for _, b := range tenancy.BuiltIns() {
		for _, kind := range b.Kinds {
			m.builtIn[schema.ParseGroupResource(kind)] = true
		}
	}
	c.Store.Feed().Follow(m)
	return m
}

// Every returns how often [Meter.Write] and [Meter.WriteUses] have to be called.
func (m *Meter) Every() time.Duration { return m.config.Every }

// measures reports whether the usage of a resource is measured.
func (m *Meter) measures(r keys.Resource) bool {
	return r.Root == keys.Custom && r.Identity != "" && !m.builtIn[r.GroupResource()]
}

// Reset implements [feed.Follower].
func (m *Meter) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.building = table{}
	m.measuring, m.live = false, nil // changes may have been missed
	m.uses.reset()
}

// Done implements [feed.Follower].
func (m *Meter) Done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows, m.building = m.building, nil
	m.uses.done()
}

// Apply implements [feed.Follower].
func (m *Meter) Apply(e feed.Event) {
	switch {
	case e.Key.Resource == notes():
		m.learn(e)
	case e.Key.Resource == useNotes():
		m.uses.learn(e)
	case m.measures(e.Key.Resource):
		m.measure(subjectOf(e.Key.Cluster, e.Key.Resource))
	}
}

// learn takes in a record, or the mark, that some process has written.
func (m *Meter) learn(e feed.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Key == mark() {
		at, err := strconv.ParseInt(string(e.Value), 10, 64)
		if err != nil {
			klog.Background().Error(err, "Mark of usage is ignored", "key", e.Key.String())
			return
		}
		m.until = at
		return
	}
	s, ok := parse(e.Key)
	if !ok {
		klog.Background().Error(nil, "Record of usage is ignored: malformed key", "key", e.Key.String())
		return
	}
	to := m.rows
	if m.building != nil {
		to = m.building
	}
	if e.Deleted() {
		to.drop(s, e.Revision)
		return
	}
	r := &record{}
	if err := json.Unmarshal(e.Value, r); err != nil {
		klog.Background().Error(err, "Record of usage is ignored", "key", e.Key.String())
		return
	}
	to.put(s, row{r, e.Revision})
}

// put stores a row, unless there is a newer one.
func (t table) put(s subject, r row) {
	of := t[s.identity]
	if of == nil {
		of = map[subject]row{}
		t[s.identity] = of
	}
	if of[s].revision <= r.revision {
		of[s] = r
	}
}

// drop removes a row, unless it is newer than the revision.
func (t table) drop(s subject, revision int64) {
	of := t[s.identity]
	if of[s].revision > revision {
		return
	}
	if delete(of, s); len(of) == 0 {
		delete(t, s.identity)
	}
}

// measure takes in a change of an object. The ledger has it already.
func (m *Meter) measure(s subject) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.measuring || m.building != nil {
		return
	}
	m.set(s, m.clock(), m.config.Store.Feed().Ledger().Usage(s.consumer, s.resource()))
}

// set records what a consumer stores from a time on. The caller holds mu.
func (m *Meter) set(s subject, at int64, to feed.Usage) {
	if l, stored := m.live[s], m.rows[s.identity][s]; l != nil && l.stores(to) || l == nil && stored.record != nil && stored.stores(to) {
		return
	}
	l := m.changing(s, at)
	l.record = l.changed(at, to)
}

// changing returns the live record of a subject, to be changed. The caller holds mu.
func (m *Meter) changing(s subject, at int64) *live {
	l := m.live[s]
	if l == nil {
		l = &live{}
		if stored := m.rows[s.identity][s]; stored.record != nil {
			l.record = *stored.record
		} else {
			l.record = record{Since: at, At: at}
			if e, bound := m.around.bound(s); bound {
				l.Exports = l.through(e)
			}
			m.name(l, s.consumer)
		}
		m.live[s] = l
	}
	l.changes++
	return l
}

// name sets the path and the tenant of the consumer, if its cluster exists.
func (m *Meter) name(l *live, c cluster.Name) {
	if path, tenant, exists := m.around.named(c); exists {
		l.Path, l.Tenant = string(path), tenant
	}
	l.Tenant = cmp.Or(l.Tenant, c)
}

// clock returns the time. It does not go back. The caller holds mu.
func (m *Meter) clock() int64 { return max(m.around.now().UnixMilli(), m.floor, m.until) }

// Stop ends the measuring by this process until the next Write, with a last write.
func (m *Meter) Stop(ctx context.Context) error {
	m.mu.Lock()
	measuring := m.measuring
	m.mu.Unlock()
	var err error
	if measuring {
		err = m.Write(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.measuring, m.live = false, nil
	return err
}

// begin starts to measure. Objects that changed since the mark count from the mark on.
func (m *Meter) begin(ctx context.Context) error {
	m.mu.Lock()
	measuring := m.measuring
	m.mu.Unlock()
	if measuring {
		return nil
	}
	if err := m.config.Store.Feed().CatchUp(ctx); err != nil { // to what another process has written
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.building != nil {
		return errors.New("all keys are being read")
	}
	m.live = map[subject]*live{}
	at := cmp.Or(m.until, m.clock())
	stored := map[subject]bool{}
	for _, e := range m.config.Store.Feed().Ledger().Identified() {
		if m.measures(e.Resource) {
			s := subjectOf(e.Cluster, e.Resource)
			stored[s] = true
			m.set(s, at, e.Usage)
		}
	}
	for _, rows := range m.rows {
		for s := range rows {
			if !stored[s] {
				m.set(s, at, feed.Usage{})
			}
		}
	}
	m.measuring = true
	return nil
}

// Write writes the records that changed since the last call, and then the mark. The loop of the
// process that writes calls it, and [Meter.Stop] at the end.
func (m *Meter) Write(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	at, changes := m.settled()
	if at == 0 {
		return nil
	}
	for some := range slices.Chunk(changes, notesAtOnce) {
		written := make([]store.Note, len(some))
		for i, c := range some {
			written[i].Key = c.key()
			if c.drop {
				continue
			}
			var err error
			if written[i].Value, err = json.Marshal(c.record); err != nil {
				return err
			}
		}
		revision, err := m.config.Store.WriteNotes(ctx, written)
		if err != nil {
			return err
		}
		m.wrote(some, revision)
	}
	if _, err := m.config.Store.WriteNotes(ctx, []store.Note{{Key: mark(), Value: strconv.AppendInt(nil, at, 10)}}); err != nil {
		return err
	}
	return m.forgetUses(ctx)
}

// wrote notes that changes were stored.
func (m *Meter) wrote(some []change, revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.building != nil || !m.measuring {
		return // the change feed delivers them
	}
	for _, c := range some {
		if c.drop {
			m.rows.drop(c.subject, revision)
			continue
		}
		m.rows.put(c.subject, row{c.record, revision})
		if l := m.live[c.subject]; l != nil && l.changes == c.changes {
			delete(m.live, c.subject)
		}
	}
}
