package answers

import (
	"context"
	"sync"

	"github.com/unforked/kcp"
)

// Limits are the maxima of weights. A weight is about the memory that something takes, in bytes.
type Limits struct {
	// All is the maximum of the weight of answers that are being read and merged, and Tenant that from the physical
	// clusters of one tenant. An owner of physical clusters gets at most the weight that it leaves free; within it, so
	// does each consumer.
	All, Tenant int64
	// Alone is the maximum of a consumer if no other has anything.
	Alone int64
	// Bytes is the maximum of the bytes of all answers to one call that are no watches, and Answer that of the weight
	// of one.
	Bytes, Answer int64
	// Page is reserved for a page before it is read, and One for another answer. It may weigh more if there is room.
	Page, One int64
	// Change is the maximum of the weight of an event of a watch. The first Light of it are not counted, so that slow
	// readers do not use up the limit.
	Change, Light int64
	// Density is what the parts of JSON weigh.
	Density Density
}

// Owners are the tenant whose physical clusters are asked, and the one that asks. The server itself is no consumer.
type Owners struct{ Compute, Consumer kcp.ClusterName }

// Weights are those of the answers that are in use.
//
// An answer that is being read weighs at least what it can take in memory, and what is kept of it weighs what it
// does take. A request waits for room only before an answer is read. Thus the only weight that waits for other
// weight is that of results, and of single pods. Of the requests that have results, one waits at a time.
type Weights struct {
	Limits

	mu      sync.Mutex
	of      map[Owners]int64    // without a consumer, that of all consumers; guarded by mu
	all     int64               // guarded by mu
	freed   chan struct{}       // closed when weight is given back; nil if no request waits; guarded by mu
	patient map[Owners]*Results // those that wait, and have weight; guarded by mu
}

// New returns weights with limits.
func New(l Limits) *Weights {
	return &Weights{Limits: l, of: map[Owners]int64{}, patient: map[Owners]*Results{}}
}

// Held returns the weight that is held.
func (w *Weights) Held() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// fits reports whether there is room for more weight. The lock is held.
func (w *Weights) fits(of Owners, n int64) bool {
	mine, now := w.of[of]+n, w.of[Owners{Compute: of.Compute}]+n
	return n <= 0 || now <= w.Tenant && now <= w.All-w.all-n && (of.Consumer == "" || mine <= w.Tenant-now)
}

// add adds weight, or gives it back. The lock is held.
func (w *Weights) add(of Owners, n int64) {
	w.all += n
	count := func(o Owners) {
		if w.of[o] += n; w.of[o] == 0 {
			delete(w.of, o)
		}
	}
	if count(Owners{Compute: of.Compute}); of.Consumer != "" {
		count(of)
	}
	if n < 0 && w.freed != nil {
		close(w.freed)
		w.freed = nil
	}
}

// Results are what a request keeps of answers until it ends.
type Results struct {
	*Weights
	owners  Owners
	kept    int64 // guarded by mu
	waiting int   // calls that wait for room while something is kept; guarded by mu
}

// Results returns the results of a request. The caller must call End if a budget of them keeps anything.
func (w *Weights) Results(of Owners) *Results { return &Results{Weights: w, owners: of} }

// Kept returns the weight of what is kept.
func (r *Results) Kept() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

// End gives the weight back.
func (r *Results) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(r.owners, -r.kept)
	r.kept = 0
}

// A Budget is what the answers to one call may weigh.
type Budget struct {
	*Results
	left int64 // bytes of answers that are no watches; below 0 if there were more
	next int64 // is reserved for the next answer that is no watch

	held  int64 // weight that is reserved, or used; guarded by mu
	used  int64 // by what is being read; guarded by mu
	part  int64 // of the results; guarded by mu
	ended bool  // a watch ends while it is read; guarded by mu

	direct    bool  // the events of a watch are used before the next one is decoded
	delivered int   // events of a watch; guarded by mu
	last      int   // the last event that is decoded; guarded by mu
	handed    int64 // weight of events that are decoded and perhaps not delivered; guarded by mu
}

// Budget returns the budget of a call whose answers are for results. The caller must call End.
func (r *Results) Budget() *Budget { return &Budget{Results: r, left: r.Bytes, next: r.One} }

// Pages tells that the next answers are pages.
func (b *Budget) Pages() { b.next = b.Page }

// Reserve waits until there is room for an answer.
func (b *Budget) Reserve(ctx context.Context, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for more := b.used + n - b.held; !b.fits(b.owners, more); {
		if ctx.Err() != nil || !b.wait(ctx, more) {
			return ErrBusy
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
func (b *Budget) wait(ctx context.Context, n int64) bool {
	if b.kept+n > b.Alone {
		return false
	}
	if b.kept > 0 {
		if first := b.patient[b.owners]; first != nil && first != b.Results {
			return false
		}
		b.patient[b.owners] = b.Results
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
func (b *Budget) take(n int64) bool {
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

// Release gives back all that is held.
func (b *Budget) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(b.owners, -b.held)
	b.held, b.used = 0, 0
}

// Settle gives back what is held of the room for an answer that has been read, and that it did not need.
func (b *Budget) Settle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(b.owners, b.used-b.held)
	b.held = b.used
}

// Keep replaces all that is held by the weight of what becomes a part of the results.
func (b *Budget) Keep(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	more := n - b.held
	if !b.fits(b.owners, more) {
		return ErrBusy
	}
	b.held, b.used = 0, 0
	b.part += n
	b.kept += n
	b.add(b.owners, more)
	return nil
}

// Stay leaves the part of this call in the results.
func (b *Budget) Stay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.part = 0
}

// decoded tells that the first n events of a watch are decoded.
func (b *Budget) decoded(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.handed = n, b.handed+b.held
	b.held, b.used = 0, 0
	b.forget()
}

// Deliver tells that one more event of a watch is delivered.
func (b *Budget) Deliver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delivered++
	b.forget()
}

// forget gives back the weight of events that are delivered. The lock is held.
func (b *Budget) forget() {
	if b.direct || b.delivered >= b.last {
		b.add(b.owners, -b.handed)
		b.handed = 0
	}
}

// End gives everything back but what stays.
func (b *Budget) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.kept -= b.part
	b.add(b.owners, -b.held-b.handed-b.part)
	b.held, b.used, b.handed, b.part = 0, 0, 0, 0
}
