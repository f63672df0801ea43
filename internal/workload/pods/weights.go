package pods

import (
	"context"
	"errors"

	"github.com/unforked/kcp"
)

const (
	// mostChange is the maximum weight of one watch event; etcd stores smaller objects. The first lightChange
	// bytes of an event are not counted, so that slow readers do not use up the limit.
	mostChange, lightChange = 8 << 20, 128 << 10
	// heldByTenant and held are the maxima of the weight of answers that are being read and merged, from the
	// targets of one tenant and from all. An owner of targets gets at most the weight that it leaves free;
	// within it, so does each consumer.
	heldByTenant, held = 768 << 20, 1 << 30
	// heldAlone is the maximum of a consumer if no other has anything.
	heldAlone = heldByTenant / 2
	// pageWeight is reserved for a page before it is read, and oneWeight for another answer. It may weigh more if
	// there is room.
	pageWeight, oneWeight = 32 << 20, 256 << 10
)

var errBusy = errors.New("too many bytes of lists of pods are in use")

// owners are the tenant whose targets are asked, and the one that asks.
type owners struct{ compute, consumer kcp.ClusterName }

// weights are those of answers. The lock of the limits guards them.
//
// An answer that is being read weighs at least what it can take in memory, and what is kept of it weighs what it
// does take. A request waits for room only before an answer is read. Thus the only weight that waits for other
// weight is that of results, and of single pods. Of the requests that have results, one waits at a time.
type weights struct {
	of      map[owners]int64 // without a consumer, that of all consumers
	all     int64
	freed   chan struct{}       // closed when weight is given back; nil if no request waits
	patient map[owners]*results // those that wait, and have weight
}

// fits reports whether there is room for more weight.
func (w *weights) fits(of owners, n int64) bool {
	mine, now := w.of[of]+n, w.of[owners{compute: of.compute}]+n
	return n <= 0 || now <= heldByTenant && now <= held-w.all-n && mine <= heldByTenant-now
}

// add adds weight, or gives it back.
func (w *weights) add(of owners, n int64) {
	w.all += n
	for _, o := range []owners{of, {compute: of.compute}} {
		if w.of[o] += n; w.of[o] == 0 {
			delete(w.of, o)
		}
	}
	if n < 0 && w.freed != nil {
		close(w.freed)
		w.freed = nil
	}
}

// results are what a request keeps of answers until it returns.
type results struct {
	*limits
	owners  owners
	kept    int64 // guarded by mu
	waiting int   // calls that wait for room while something is kept; guarded by mu
}

// results returns the results of a request for the pods of a workspace. The caller must call end.
func (p *Pods) results(w *workspace) *results {
	return &results{limits: p.limits, owners: owners{p.tenant(w.compute), p.tenant(w.cluster)}}
}

// end gives the weight back.
func (r *results) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(r.owners, -r.kept)
	r.kept = 0
}

// A budget is what the answers to one call may weigh.
type budget struct {
	*results
	left int64 // bytes of answers that are no watches; below 0 if there were more
	next int64 // is reserved for the next answer that is no watch

	held  int64 // weight that is reserved, or used; guarded by mu
	used  int64 // by what is being read; guarded by mu
	part  int64 // of the results; guarded by mu
	ended bool  // a watch ends while it is read; guarded by mu

	delivered int   // events of a watch; guarded by mu
	last      int   // the last event that is decoded; guarded by mu
	handed    int64 // weight of events that are decoded and perhaps not delivered; guarded by mu
}

// budget returns the budget of a call whose answers are for results.
func (r *results) budget() *budget { return &budget{results: r, left: mostBytes, next: oneWeight} }

// reserve waits until there is room for an answer.
func (b *budget) reserve(ctx context.Context, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for more := b.used + n - b.held; !b.fits(b.owners, more); {
		if ctx.Err() != nil || !b.wait(ctx, more) {
			return errBusy
		}
	}
	if more := b.used + n - b.held; more > 0 {
		b.add(b.owners, more)
		b.held += more
	}
	return nil
}

// wait waits until weight is given back. It reports false at once if that cannot help, or if another request waits
// for what this one has. The lock is held, but not while it waits.
func (b *budget) wait(ctx context.Context, n int64) bool {
	if b.kept+n > heldAlone {
		return false
	}
	if b.kept > 0 {
		if first := b.patient[b.owners]; first != nil && first != b.results {
			return false
		}
		b.patient[b.owners] = b.results
		b.waiting++
		defer func() {
			if b.waiting--; b.waiting == 0 {
				delete(b.patient, b.owners)
			}
		}()
	}
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	freed := b.freed
	b.mu.Unlock()
	defer b.mu.Lock()
	kcp.Wait(ctx, func() {
		select {
		case <-freed:
		case <-ctx.Done():
		}
	})
	return true
}

// take takes weight. It reports false if there is no room.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := max(0, b.used+n-b.held)
	if b.ended || !b.fits(b.owners, more) {
		return false
	}
	b.add(b.owners, more)
	b.held += more
	b.used += n
	return true
}

// release gives back all that is held.
func (b *budget) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(b.owners, -b.held)
	b.held, b.used = 0, 0
}

// keep replaces all that is held by the weight of what becomes a part of the results.
func (b *budget) keep(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := n - b.held
	if !b.fits(b.owners, more) {
		return errBusy
	}
	b.held, b.used = 0, 0
	b.part += n
	b.kept += n
	b.add(b.owners, more)
	return nil
}

// stay leaves the part of this call in the results.
func (b *budget) stay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.part = 0
}

// decoded tells that the first n events of a watch are decoded.
func (b *budget) decoded(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.handed = n, b.handed+b.held
	b.held, b.used = 0, 0
	b.forget()
}

// deliver tells that one more event of a watch is delivered.
func (b *budget) deliver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delivered++
	b.forget()
}

// forget gives back the weight of events that are delivered. The lock is held.
func (b *budget) forget() {
	if b.delivered >= b.last {
		b.add(b.owners, -b.handed)
		b.handed = 0
	}
}

// end gives everything back but what stays.
func (b *budget) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.kept -= b.part
	b.add(b.owners, -b.held-b.handed-b.part)
	b.held, b.used, b.handed, b.part = 0, 0, 0, 0
}
