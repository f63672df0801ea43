// Package feed watches all keys of etcd in the order of their revisions, and delivers each
// change once to everything in memory that depends on it: the ledger, tables, other
// followers, and watches of custom resources.
//
// The feed has one applied revision: ledger and followers contain exactly the changes up
// to it. A request waits for that revision, so that no decision is made on old data.
package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	scanBytes  = 32 << 20 // about the size of a page of a scan
	retryAfter = 200 * time.Millisecond
)

// A Follower is a projection of all keys that the feed keeps up to date. The feed calls
// its methods one at a time. If one of them panics, the feed rebuilds the follower and all
// that were added after it. If a method of an event could not decrypt the value, the feed
// delivers the event again later.
type Follower interface {
	// Reset begins a rebuild: until Done, Apply gets the existing objects and changes of them.
	Reset()
	// Apply takes in a change.
	Apply(Event)
	// Done ends the rebuild: objects that Apply did not get since Reset do not exist.
	Done()
}

// A Listener gets everything that the feed receives, before the ledger and the followers,
// and is never rebuilt. The feed calls it in its own goroutine, so it must return quickly.
type Listener interface {
	// Changed gets a change, also of keys that exist when the feed reads all keys. The key
	// has the value at revision at, which is the revision of the event unless all keys are
	// read.
	Changed(e Event, at int64)
	// Reached reports that etcd is at revision rev. Changes up to it may still follow.
	Reached(rev int64)
	// Scans reports that the feed reads all keys as of revision rev, because it may have
	// missed changes before.
	Scans(rev int64)
}

// Options configure a feed. All fields but Revisions and Now are required.
type Options struct {
	// Client has a watch stream that nothing else uses. The caller closes it after Stop.
	Client *clientv3.Client
	// Prefix of all keys, without a slash at the end.
	Prefix string
	Values *values.Kinds
	// Tenants get the bytes that each cluster stores.
	Tenants  *quota.Tenants
	Listener Listener
	// Known returns the newest revision that this process knows of.
	Known func() int64
	// Revisions reads the current revision of etcd. It is nil if no other process writes
	// to etcd.
	Revisions *RevisionReader
	// Now is the clock by which the age of data is measured. The default is time.Now.
	Now func() time.Time
}

// A Feed follows every change of every cluster in order. Methods may be called
// concurrently, unless they say otherwise.
type Feed struct {
	client    *clientv3.Client
	prefix    string
	kinds     *values.Kinds
	listener  Listener
	known     func() int64
	revisions *RevisionReader // nil if no other process writes to etcd
	now       func() time.Time

	ledger      *Ledger
	broadcaster *broadcaster
	ctx         context.Context // of the goroutine, ended by Stop
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	confirmed   confirmation // if other processes write to etcd
	delivered   atomic.Int64 // every change up to it was delivered

	// Used by the goroutine alone:
	projections []*projection
	repair      *repair             // nil if all projections are in step
	repaired    time.Time           // when the last repair ended
	tries       int                 // repairs since the projections were in step for a while
	again       bool                // whether the last change has to be delivered again
	unread      map[keys.Key]uint64 // values that could not be decrypted; bit i is set if projection i needs the value
	probeAt     time.Time           // when to try to decrypt them
	probes      int                 // attempts since a value could be read
	probing     bool
	probed      chan bool // whether a value can be read now
	readOnce    sync.Once // closes ready
	failOnce    sync.Once // closes failed

	mu      sync.Mutex
	unwatch context.CancelCauseFunc // ends the present watch; nil without one
	broken  error                   // why a projection cannot be rebuilt
	applied int64                   // every change up to it was delivered, and applied by all projections
	moved   chan struct{}           // closed and replaced when applied grows
	ready   chan struct{}           // closed once all keys were read
	failed  chan struct{}           // closed once a projection could not be rebuilt
}

// New returns a feed that has not started.
func New(o Options) *Feed {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Feed{
		client: o.Client, prefix: o.Prefix, kinds: o.Values, listener: o.Listener, known: o.Known, revisions: o.Revisions, now: o.Now,
		ledger: newLedger(o.Tenants), ctx: ctx, cancel: cancel, unread: map[keys.Key]uint64{}, probed: make(chan bool),
		moved: make(chan struct{}), ready: make(chan struct{}), failed: make(chan struct{}),
	}
	if f.now == nil {
		f.now = time.Now
	}
	f.broadcaster = newBroadcaster(f.Revision)
	return f
}

// Follow adds a follower. It must be called before Start.
func (f *Feed) Follow(to Follower) {
	f.projections = append(f.projections, &projection{to, map[keys.Key]struct{}{}})
}

// Share sets the function that returns [Event.Shared] for an event of a custom resource. It
// must be called before Start. Without it, subscriptions share nothing.
func (f *Feed) Share(shared func() any) { f.broadcaster.shared = shared }

// Start begins to follow etcd, and returns once all existing keys were read. It fails with
// the error of [Feed.InStep] if a follower cannot be built.
func (f *Feed) Start(ctx context.Context) error {
	f.wg.Go(f.run)
	select {
	case <-f.ready:
		return nil
	case <-f.failed:
		return f.InStep() // nil if it was built since
	case <-ctx.Done():
		return ctx.Err()
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
}

// Stop ends the feed, and returns once no follower is called any more.
func (f *Feed) Stop() {
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	f.wg.Wait()
}

// Ready returns a channel that is closed once all existing keys were read.
func (f *Feed) Ready() <-chan struct{} { return f.ready }

// Ledger returns the exact counts of stored objects.
func (f *Feed) Ledger() *Ledger { return f.ledger }

// run follows etcd until Stop. It continues where a watch ended; after a gap it reads all
// keys again.
func (f *Feed) run() {
	for complete := false; f.ctx.Err() == nil; { // whether every change so far was delivered
		var err error
		if !complete {
			err = f.rebuild()
			complete = err == nil
		}
		if complete {
			err = f.watch(f.delivered.Load() + 1)
			complete = errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, errStuck) // these leave no gap
		}
		if f.ctx.Err() != nil {
			return
		}
		if !complete {
			klog.FromContext(f.ctx).Error(err, "Lost track of changes; reading everything again")
		}
		select {
		case <-time.After(retryAfter):
		case <-f.ctx.Done():
		}
	}
}

// rebuild reads all keys as of one revision.
func (f *Feed) rebuild() error {
	f.ledger.reset()
	f.broadcaster.reset()
	f.repair = nil
	clear(f.unread)
	for i, p := range f.projections {
		clear(p.refused)
		f.guarded(i, "Reset", p.Reset)
	}
	var rev int64
	for pages := f.pages(); pages.More(); {
		page, err := pages.Next(f.ctx, clientv3.WithRev(rev))
		if err != nil {
			return fmt.Errorf("read all keys: %w", err)
		}
		if rev == 0 {
			rev = page.Header.Revision // the other pages are read as of the first
			f.listener.Scans(rev)
		}
		for _, kv := range page.Kvs {
			f.apply(&clientv3.Event{Type: mvccpb.PUT, Kv: kv}, rev)
		}
	}
	f.ledger.swap()
	for i, p := range f.projections {
		if f.repair == nil || i < f.repair.from {
			f.guarded(i, "Done", p.Done)
		}
	}
	if f.repair == nil {
		f.inStep()
	}
	f.advance(rev)
	f.broadcaster.begin(rev)
	return nil
}

// pages returns a pager of all keys.
func (f *Feed) pages() *etcd.Pager { return etcd.NewPager(f.client, f.prefix+"/", scanBytes) }

// watch applies changes from revision rev on, until it misses one.
func (f *Feed) watch(rev int64) error {
	ctx, unwatch := context.WithCancelCause(f.ctx)
	defer unwatch(nil)
	f.mu.Lock()
	f.unwatch = unwatch
	f.mu.Unlock()
	changes := f.client.Watch(clientv3.WithRequireLeader(ctx), f.prefix+"/",
		clientv3.WithPrefix(), clientv3.WithRev(rev), clientv3.WithPrevKV(), clientv3.WithProgressNotify())
	for {
		var resp clientv3.WatchResponse
		var ok bool
		select {
		case resp, ok = <-changes:
		case <-f.due():
			f.catchUpProjections()
			continue
		case readable := <-f.probed:
			f.readAgain(readable)
			continue
		}
		if !ok && errors.Is(context.Cause(ctx), errStuck) {
			return errStuck
		}
		if !ok {
			return errors.New("watch ended")
		}
		if err := resp.Err(); err != nil {
			return err
		}
		for i, e := range resp.Events {
			// All changes of a transaction have one revision. It is applied after the last
			// of them.
			if i > 0 && e.Kv.ModRevision > resp.Events[i-1].Kv.ModRevision {
				f.advance(resp.Events[i-1].Kv.ModRevision)
			}
			if err := etcd.Previous(f.ctx, f.client, e); err != nil {
				return fmt.Errorf("read the value before revision %d: %w", e.Kv.ModRevision, err)
			}
			f.apply(e, e.Kv.ModRevision)
		}
		f.listener.Reached(resp.Header.Revision)
		f.advance(newest(resp))
	}
}

// newest returns the revision that is applied after the response. While the watch catches
// up, etcd sends changes in parts, and the header of each part has the newest revision.
func newest(resp clientv3.WatchResponse) int64 {
	if n := len(resp.Events); n > 0 {
		return resp.Events[n-1].Kv.ModRevision
	}
	if resp.IsProgressNotify() {
		return resp.Header.Revision
	}
	return 0
}

// apply delivers a change. The key has the value at revision at.
func (f *Feed) apply(e *clientv3.Event, at int64) {
	ev, ok := f.Event(e)
	if !ok {
		return // not an object: a note of the server about all clusters
	}
	f.listener.Changed(ev, at)
	if _, isFence := keys.FenceOf(ev.Key); !isFence {
		f.ledger.apply(ev)
		f.broadcaster.apply(ev)
	}
	f.deliver(ev)
}

// advance records that every change up to a revision was delivered.
func (f *Feed) advance(rev int64) {
	raise(&f.delivered, rev)
	if f.repair != nil {
		return // decisions wait for the projections
	}
	rev = f.delivered.Load()
	f.readOnce.Do(func() { close(f.ready) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if rev > f.applied {
		f.applied = rev
		close(f.moved)
		f.moved = make(chan struct{})
	}
}

// raise sets to to rev unless it is larger.
func raise(to *atomic.Int64, rev int64) {
	for {
		old := to.Load()
		if old >= rev || to.CompareAndSwap(old, rev) {
			return
		}
	}
}
