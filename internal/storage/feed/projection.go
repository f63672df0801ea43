package feed

import (
	"fmt"
	"math/bits"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	// maxBackoff limits the delay of repairs and of attempts to decrypt values.
	maxBackoff = 10 * time.Second
	// maxTries is the number of repairs that may fail before the readiness check does.
	maxTries = 3
	// maxProbes is the number of unreadable values that one attempt decrypts.
	maxProbes = 8
)

// A Careful follower knows the keys whose changes it does not get, so that it does not
// treat their objects as absent.
type Careful interface {
	// Unknown reports that the follower panicked on a key, and gets no changes of the key
	// until the key is deleted.
	Unknown(keys.Key)
}

// A projection is a follower with the keys on which it panicked twice.
type projection struct {
	Follower
	refused map[keys.Key]struct{}
}

// A repair rebuilds the projections that panicked or come after one that did: a projection
// may read earlier ones. It reads all keys page by page, between the changes that the feed
// delivers. Projections under repair get changes of the keys that the repair has read.
type repair struct {
	from  int         // index of the first projection under repair
	pages *etcd.Pager // of all keys; nil before the repair begins
	at    time.Time   // when it begins
}

// has reports whether the repair has read a key, which has the prefix.
func (r *repair) has(key string) bool { return r.pages != nil && r.pages.Read(key) }

// InStep returns an error that names the follower that cannot be rebuilt, or nil if all
// followers can.
func (f *Feed) InStep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

// guarded calls a method of projection i, and reports whether it did not panic. A panic
// must not stop the feed, on which every cluster depends: it starts a repair.
func (f *Feed) guarded(i int, key any, call func()) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			f.outOfStep(i, fmt.Errorf("panic of %T at %v: %v", f.projections[i].Follower, key, r))
		}
	}()
	call()
	return true
}

// outOfStep schedules the repair of projection i and those after it.
func (f *Feed) outOfStep(i int, why error) {
	klog.FromContext(f.ctx).Error(why, "A projection of the change feed is rebuilt")
	if f.repair == nil && time.Since(f.repaired) > time.Minute {
		f.tries = 0
	} else if f.repair != nil {
		i = min(i, f.repair.from)
	}
	f.repair = &repair{from: i, at: time.Now().Add(backoff(f.tries))}
	if f.tries++; f.tries > maxTries {
		f.mu.Lock()
		f.broken = why
		f.mu.Unlock()
		f.failOnce.Do(func() { close(f.failed) })
	}
}

// backoff returns the delay after a number of tries; 0 before the first.
func backoff(tries int) time.Duration {
	if tries == 0 {
		return 0
	}
	return min(maxBackoff, retryAfter<<min(tries-1, 10))
}

// deliver offers a change to the projections that are in step, and to those under repair
// if the repair has read the key.
func (f *Feed) deliver(e Event) {
	for i := range f.projections {
		if f.repair == nil || i < f.repair.from || f.repair.has(f.prefix+e.Key.Path()) {
			f.offer(i, e)
		}
	}
}

// offer gives projection i a change, and reports whether it did not panic. If the
// projection could not decrypt the value, it gets the change again later.
func (f *Feed) offer(i int, e Event) (ok bool) {
	p := f.projections[i]
	if _, out := p.refused[e.Key]; out {
		if e.Deleted() {
			delete(p.refused, e.Key)
		} else if c, ok := p.Follower.(Careful); ok {
			return f.guarded(i, e.Key, func() { c.Unknown(e.Key) })
		} else {
			return true
		}
	}
	f.again = false
	e.again = &f.again
	if !f.guarded(i, e.Key, func() { p.Apply(e) }) {
		return false
	}
	was := f.unread[e.Key]
	if now := was&^(1<<i) | bit(f.again)<<i; now != 0 {
		f.unread[e.Key] = now
	} else if was != 0 {
		delete(f.unread, e.Key)
	}
	return true
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// due returns a channel that gets a value when a repair has work, or when unreadable values
// are to be tried again; nil if neither is pending.
func (f *Feed) due() <-chan time.Time {
	var at time.Time
	switch {
	case f.repair != nil:
		at = f.repair.at
	case len(f.unread) > 0 && !f.probing:
		if at = f.probeAt; at.IsZero() {
			f.probeAt = time.Now().Add(backoff(1))
			at = f.probeAt
		}
	default:
		return nil
	}
	return time.After(time.Until(at))
}

// catchUpProjections continues the repair, or starts to try unreadable values.
func (f *Feed) catchUpProjections() {
	if f.repair != nil {
		f.continueRepair()
		return
	}
	if len(f.unread) == 0 || f.probing {
		return
	}
	some := make([]keys.Key, 0, maxProbes)
	for k := range f.unread { // in random order, so that each is tried at some time
		if some = append(some, k); len(some) == maxProbes {
			break
		}
	}
	f.probing = true
	f.wg.Go(func() { f.probe(some, f.delivered.Load()) })
}

// probe tries to decrypt some values. It may wait for a key service, so it does not run in
// the goroutine that delivers changes.
func (f *Feed) probe(some []keys.Key, rev int64) {
	readable := false
	for _, k := range some {
		resp, err := f.client.Get(f.ctx, f.prefix+k.Path(), clientv3.WithRev(rev))
		if err == nil && len(resp.Kvs) > 0 {
			_, err = f.kinds.Decrypt(f.ctx, k, resp.Kvs[0].Value)
		}
		if readable = err == nil || values.IsCorrupt(err); readable {
			break
		}
	}
	select {
	case f.probed <- readable:
	case <-f.ctx.Done():
	}
}

// readAgain delivers the values that could not be decrypted, if one of them can be now.
func (f *Feed) readAgain(readable bool) {
	f.probing = false
	left := len(f.unread)
	for k, which := range f.unread {
		if !readable || f.repair != nil {
			break
		}
		resp, err := f.client.Get(f.ctx, f.prefix+k.Path(), clientv3.WithRev(f.delivered.Load()))
		if err != nil {
			break
		}
		if len(resp.Kvs) == 0 {
			delete(f.unread, k)
			continue
		}
		e := f.stored(k, resp.Kvs[0])
		for ; which != 0; which &= which - 1 {
			f.offer(bits.TrailingZeros64(which), e)
		}
		readable = f.unread[k] == 0
	}
	if f.probes++; len(f.unread) < left {
		f.probes = 1
	}
	f.probeAt = time.Now().Add(backoff(f.probes))
}

// stored returns an existing key as an event.
func (f *Feed) stored(k keys.Key, kv *mvccpb.KeyValue) Event {
	return Event{Key: k, Revision: kv.ModRevision, Value: present(kv.Value), kinds: f.kinds}
}

// continueRepair reads one page for the projections under repair, as of the delivered
// revision.
func (f *Feed) continueRepair() {
	r := f.repair
	if r.pages == nil {
		for i := r.from; i < len(f.projections); i++ {
			if !f.guarded(i, "Reset", f.projections[i].Reset) {
				return
			}
		}
		r.pages = f.pages()
	}
	page, err := r.pages.Next(f.ctx, clientv3.WithRev(f.delivered.Load()))
	if err != nil {
		if f.ctx.Err() == nil {
			f.outOfStep(r.from, fmt.Errorf("read what is stored: %w", err))
		}
		return
	}
	for _, kv := range page.Kvs {
		f.reoffer(r, kv)
		if f.repair != r {
			return // out of step again
		}
	}
	if r.pages.More() {
		return
	}
	for i := r.from; i < len(f.projections); i++ {
		if !f.guarded(i, "Done", f.projections[i].Done) {
			return
		}
	}
	f.repair, f.repaired = nil, time.Now()
	f.inStep()
	f.advance(f.delivered.Load())
}

// inStep records that all projections are in step.
func (f *Feed) inStep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = nil
}

// reoffer gives the projections under repair an existing key. A projection that panics on
// it again gets no changes of the key until the key is deleted.
func (f *Feed) reoffer(r *repair, kv *mvccpb.KeyValue) {
	k, ok := f.key(kv.Key)
	if !ok {
		return
	}
	e := f.stored(k, kv)
	for i := r.from; i < len(f.projections) && f.repair == r; i++ {
		if !f.offer(i, e) {
			f.projections[i].refused[k] = struct{}{}
		}
	}
}
