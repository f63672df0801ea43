package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

// An Event is a change of one key. Its values are nil before an object was
// created and after it was deleted.
type Event struct {
	Key      Key
	Revision int64
	value    []byte
	previous []byte
	store    *Store
}

// Deleted reports whether the object is gone.
func (e Event) Deleted() bool { return e.value == nil }

// Object decodes the object as it is after the event, in its storage version.
func (e Event) Object(ctx context.Context) (runtime.Object, error) {
	return e.store.decode(ctx, e.Key, e.value)
}

// Unmarshal decodes the object, which is stored as JSON, into o.
func (e Event) Unmarshal(ctx context.Context, o any) error {
	return e.store.unmarshal(ctx, e.Key, e.value, o)
}

// A Follower is a projection of all keys that the spine keeps up to date. Its
// methods are called one at a time.
type Follower interface {
	// Reset begins a rebuild: until Done, Apply gives what exists.
	Reset()
	// Apply takes in a change.
	Apply(Event)
	// Done ends the rebuild: what was not given since Reset is gone.
	Done()
}

// The Spine follows every change of every cluster, in order, and keeps what can
// refuse a request or must be exact: fences, the ledger, and its followers. All of
// it has one revision up to which it is applied.
type Spine struct {
	store  *Store
	ledger *Ledger
	relay  *relay
	client *clientv3.Client
	ctx    context.Context // of the goroutine, ended by stop
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	followers []Follower
	applied   int64
	moved     chan struct{} // closed and replaced when applied grows
	ready     chan struct{} // closed once everything was read
}

const (
	scanPage   = 2000     // keys read at once at first
	scanBytes  = 32 << 20 // and about so much later
	retryAfter = 200 * time.Millisecond
	// freshness is how long a refusal may wait for evidence as new as the newest
	// revision that this process has seen.
	freshness = time.Second
	// freshnessHere is as freshness where etcd is in this process: what there is to wait
	// for comes for sure, however busy the machine is, and nobody says then that a refusal
	// was for want of evidence.
	freshnessHere = 5 * time.Second
	// firstAsk is how long to wait for the answer to how far the watch is before it is
	// asked again. The server it runs on may not be as far as another one.
	firstAsk = 2 * time.Millisecond
)

func newSpine(s *Store) *Spine {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Spine{store: s, ledger: newLedger(), client: s.backend.watcher(), ctx: ctx, cancel: cancel, moved: make(chan struct{}), ready: make(chan struct{})}
	p.relay = newRelay(p.revision)
	return p
}

// Follow adds a follower. It must be called before Start.
func (p *Spine) Follow(f Follower) { p.followers = append(p.followers, f) }

// Start begins to follow, and returns once all that exists was read.
func (p *Spine) Start(ctx context.Context) error {
	p.wg.Go(p.run)
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *Spine) stop() {
	p.cancel()
	p.wg.Wait()
	_ = p.client.Close() // reports nothing but that its context ended
}

// Ready is closed once everything that existed at the start was read.
func (p *Spine) Ready() <-chan struct{} { return p.ready }

// Ledger returns the exact counts of what is stored.
func (p *Spine) Ledger() *Ledger { return p.ledger }

// Fresh waits, for a moment at most, until everything is applied that this process
// knows to be committed or, where others write too, that is. It reports whether it is:
// then a decision made before is to be made again, as what it was for want of may have
// been applied since. If etcd does not answer, that is noted in the context, see
// [WithOutage].
func (p *Spine) Fresh(ctx context.Context) bool {
	limit := freshness
	if p.store.horizon == nil {
		limit = freshnessHere
	}
	err := p.catchUp(ctx, limit)
	if err != nil && p.store.horizon != nil && ctx.Err() == nil {
		noteOutage(ctx, err)
	}
	return err == nil
}

// CatchUp is Fresh for what nobody may be allowed on older evidence: it waits until the
// context ends.
func (p *Spine) CatchUp(ctx context.Context) error { return p.catchUp(ctx, 0) }

// catchUp waits, for no longer than the limit if that is not 0 and etcd has answered.
func (p *Spine) catchUp(ctx context.Context, limit time.Duration) error {
	want := p.store.guard.latest.Load()
	if p.store.horizon != nil {
		now, err := p.store.horizon.now(ctx)
		if err != nil {
			return err
		}
		want = max(want, now)
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return p.Await(ctx, want)
}

// Await waits until everything up to a revision is applied that was read from etcd, and
// that others may have written, also those who share etcd below another prefix.
func (p *Spine) Await(ctx context.Context, rev int64) error {
	if p.store.horizon == nil {
		return p.WaitFor(ctx, rev)
	}
	return p.reach(ctx, rev)
}

// reach is WaitFor a revision that may be that of somebody else's keys, of which the
// watch hears only if it asks how far it is.
func (p *Spine) reach(ctx context.Context, rev int64) error {
	for wait := firstAsk; ; wait *= 2 {
		if p.reached(rev) {
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, min(wait, retryAfter))
		err := p.client.RequestProgress(clientv3.WithRequireLeader(limited)) // as the watch
		if err == nil {
			err = p.WaitFor(limited, rev)
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (p *Spine) reached(rev int64) bool { return p.revision() >= rev }

// WaitFor waits until everything up to a revision is applied.
func (p *Spine) WaitFor(ctx context.Context, rev int64) error {
	for {
		p.mu.Lock()
		done, moved := p.applied >= rev, p.moved
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *Spine) advance(rev int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rev > p.applied {
		p.applied = rev
		close(p.moved)
		p.moved = make(chan struct{})
	}
}

// run follows until stop. It goes on where a watch ended; after a gap it reads
// everything again.
func (p *Spine) run() {
	var once sync.Once
	for whole := false; p.ctx.Err() == nil; {
		var err error
		if !whole {
			err = p.rebuild()
			whole = err == nil
		}
		if whole {
			once.Do(func() { close(p.ready) })
			err = p.watch(p.revision() + 1)
			whole = errors.Is(err, rpctypes.ErrNoLeader) // which ends a watch, but leaves no gap
		}
		if p.ctx.Err() != nil {
			return
		}
		if !whole {
			klog.FromContext(p.ctx).Error(err, "Lost track of changes; reading everything again")
		}
		select {
		case <-time.After(retryAfter):
		case <-p.ctx.Done():
		}
	}
}

// revision returns the one up to which everything is applied.
func (p *Spine) revision() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied
}

// rebuild reads all keys as they are at one revision.
func (p *Spine) rebuild() error {
	start := p.store.prefix + "/"
	end := clientv3.GetPrefixRangeEnd(start)
	p.ledger.reset()
	p.relay.reset()
	for _, f := range p.followers {
		p.give("Reset", f.Reset)
	}
	var rev int64
	for key, limit := start, int64(scanPage); ; {
		resp, err := p.client.Get(p.ctx, key, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(rev))
		if err != nil {
			return fmt.Errorf("read all keys: %w", err)
		}
		if rev == 0 {
			rev = resp.Header.Revision // the other pages are read as of the first
			p.store.guard.fences.forget(rev)
		}
		var bytes int64
		for _, kv := range resp.Kvs {
			bytes += int64(len(kv.Key) + len(kv.Value))
			p.apply(&clientv3.Event{Type: mvccpb.PUT, Kv: kv}, rev)
		}
		if !resp.More {
			break
		}
		limit = nextPage(limit, bytes, scanBytes)
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	p.ledger.swap()
	for _, f := range p.followers {
		p.give("Done", f.Done)
	}
	p.advance(rev)
	p.relay.begin(rev)
	return nil
}

// watch applies changes from revision rev on, until it loses track.
func (p *Spine) watch(rev int64) error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	changes := p.client.Watch(clientv3.WithRequireLeader(ctx), p.store.prefix+"/",
		clientv3.WithPrefix(), clientv3.WithRev(rev), clientv3.WithPrevKV(), clientv3.WithProgressNotify())
	for resp := range changes {
		if err := resp.Err(); err != nil {
			return err
		}
		for i, e := range resp.Events {
			// All changes of a transaction share a revision: it is applied once the
			// last of them is.
			if i > 0 && e.Kv.ModRevision > resp.Events[i-1].Kv.ModRevision {
				p.advance(resp.Events[i-1].Kv.ModRevision)
			}
			if e.PrevKv == nil && !e.IsCreate() {
				return fmt.Errorf("the value before revision %d is compacted", e.Kv.ModRevision)
			}
			p.apply(e, e.Kv.ModRevision)
		}
		p.store.guard.saw(resp.Header.Revision)
		p.advance(newest(resp))
	}
	return errors.New("watch ended")
}

// newest returns the revision that is applied once the response is. While the watch
// catches up, etcd sends its changes in parts, and each already has the newest
// revision in its header.
func newest(resp clientv3.WatchResponse) int64 {
	if n := len(resp.Events); n > 0 {
		return resp.Events[n-1].Kv.ModRevision
	}
	if resp.IsProgressNotify() {
		return resp.Header.Revision
	}
	return 0
}

// apply takes in a change, which tells how its key is at revision at.
func (p *Spine) apply(e *clientv3.Event, at int64) {
	k, ok := parseKey(strings.TrimPrefix(string(e.Kv.Key), p.store.prefix))
	if !ok {
		return // not an object: the description of the format
	}
	if p.store.horizon != nil { // somebody else may have committed it
		p.store.guard.saw(e.Kv.ModRevision, k.Resource)
	}
	ev := Event{Key: k, Revision: e.Kv.ModRevision, store: p.store}
	if e.Type != clientv3.EventTypeDelete {
		ev.value = present(e.Kv.Value)
	}
	if e.PrevKv != nil {
		ev.previous = present(e.PrevKv.Value)
	}
	if ev.Deleted() {
		p.store.backend.capacity.gone.Add(1)
	}
	if c, ok := fenceOf(k); ok {
		p.applyFence(c, ev, at)
	} else {
		p.ledger.apply(ev)
		p.relay.apply(ev)
		p.store.caches.changed(ev)
		p.store.histories.changed(ev)
	}
	for _, f := range p.followers {
		p.tell(f, ev)
	}
}

// present tells an empty value, which no server writes, from none.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

// applyFence takes in the fence of c as it is at revision at.
func (p *Spine) applyFence(c cluster.Name, e Event, at int64) {
	var now fence
	if !e.Deleted() {
		now = fence{rev: e.Revision, state: State(e.value)}
	}
	p.store.guard.fences.learn(c, now, at)
}

// tell has one follower take in a change.
func (p *Spine) tell(f Follower, e Event) {
	defer func() {
		if r := recover(); r != nil {
			p.panicked(r, e.Key)
		}
	}()
	f.Apply(e)
}

// give lets one follower take in what key names. Its panic must not stop the
// spine, on which every cluster depends.
func (p *Spine) give(key any, take func()) {
	defer func() {
		if r := recover(); r != nil {
			p.panicked(r, key)
		}
	}()
	take()
}

func (p *Spine) panicked(reason, key any) {
	klog.FromContext(p.ctx).Error(fmt.Errorf("panic: %v", reason), "Change not taken in", "key", key)
}
