package fair

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A Work is the use of the shares by one request. Its methods may be called at any time
// and concurrently. A nil Work has no limits.
//
// A request computes while it has a seat. It gives up the seat while it waits:
//
//	[Wait]          for etcd or a lock: it then continues without a free seat
//	[Commit]        the same, for a commit of etcd
//	[WaitOutside]   the same, in several goroutines at a time
//	[Lend]          the same, for one of several requests
//	[Work.Yield]    for its client: it then waits for a seat, so it must hold no lock
//	[Continue]      because it has computed for long: it then waits for a heavy seat
//	[Work.Rest]     until the next Compute, as an open watch does
type Work struct {
	shares *Shares
	ended  chan struct{}

	outside Waits         // of WaitOutside
	events  *rate.Limiter // of a watch, else nil; set once

	mu      sync.Mutex
	tenant  string
	class   Class
	seated  bool // the request computes
	rests   bool // it takes no seat back after waiting
	since   time.Time
	bytes   int64 // bytes that the request holds
	counted int64 // part of bytes that counts for the tenant
	onEnd   []func()
	over    bool
}

// Begin returns the work of a new request. The work has no limits until [Work.For] sets a
// tenant. The caller must call [Work.End].
func (s *Shares) Begin() *Work { return &Work{shares: s, ended: make(chan struct{})} }

type workKey struct{}

// Held returns the bytes that the request of ctx holds, as counted by [Grow].
func Held(ctx context.Context) int64 {
	w := From(ctx)
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// With returns a context with the work of a request.
func With(ctx context.Context, w *Work) context.Context { return context.WithValue(ctx, workKey{}, w) }

// From returns the work of the request of ctx, or nil.
func From(ctx context.Context) *Work {
	w, _ := ctx.Value(workKey{}).(*Work)
	return w
}

// Grow counts bytes of memory that the request of ctx is about to allocate. A negative
// number counts freed bytes. The bytes count until the request ends. An error is a Status
// for the client.
func Grow(ctx context.Context, bytes int64) error { return From(ctx).Grow(bytes) }

// Wait runs wait without the seat of the request of ctx. wait waits for etcd, a webhook, a
// disk or the client. After it the request continues at once, without waiting for a seat,
// because other requests may wait for its locks.
func Wait(ctx context.Context, wait func()) {
	resume, _ := From(ctx).pause()
	defer resume()
	wait()
}

// Commit is [Wait] for a commit of etcd. Etcd applies the commits of all tenants one after the other. So while other
// tenants use the server, the tenant of the request begins few further requests during the commit.
func Commit(ctx context.Context, commit func()) {
	old := From(ctx).commit()
	timer := time.AfterFunc(newFor, old)
	Wait(ctx, commit)
	timer.Stop()
	old()
}

// commit counts the request as a new commit until old is called.
func (w *Work) commit() (old func()) {
	if w == nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seated {
		return func() {}
	}
	return w.shares.schedulers[w.class].commit(w.tenant)
}

// Lend runs wait while one of some requests gives up its seat. It is for code that knows which
// requests may wait but not which of them does, such as calls of webhooks. The seat may be that of
// another of these requests, which may end meanwhile.
func Lend(some []*Work, wait func()) {
	for _, w := range some {
		if resume, had := w.pause(); had {
			defer resume()
			break
		}
	}
	wait()
}

// Tenant returns the tenant of the work; it is empty if the work has none.
func (w *Work) Tenant() string {
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tenant
}

// For sets the tenant of the work and gives up its seat. The memory of the work counts for
// the new tenant. Without a tenant the work has no limits.
func (w *Work) For(tenant string) {
	w.Pause()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shares.memory.move(w.tenant, tenant, w.counted)
	w.tenant = tenant
}

// Compute waits for a seat, and notes that the tenant uses the server. An error is a Status for
// the client.
func (w *Work) Compute(ctx context.Context, class Class) error {
	if tenant := w.Tenant(); tenant != "" {
		w.shares.schedulers[Light].note(tenant)
	}
	return w.compute(ctx, class)
}

// Ask is Compute for the time of authorization, before the tenant is known: the caller stands for it.
func (w *Work) Ask(ctx context.Context) error { return w.compute(ctx, Light) }

func (w *Work) compute(ctx context.Context, class Class) error {
	if w == nil {
		return nil
	}
	w.Pause()
	w.mu.Lock()
	w.class, w.rests = class, false
	tenant := w.tenant
	w.mu.Unlock()
	if tenant == "" {
		return nil
	}
	if err := ctx.Err(); err != nil { // the client disconnected before the request cost anything
		return apierrors.NewTooManyRequests("the request ended before it was served", 1)
	}
	switch err := w.shares.schedulers[class].acquire(ctx, tenant, w.shares.limits.Timeout); {
	case errors.Is(err, errFull):
		return apierrors.NewTooManyRequests("too many requests at once from you or your workspaces; send fewer at a time", 1)
	case err != nil:
		return apierrors.NewTooManyRequests("your requests, or those of your workspaces, keep the server busy for longer than this one can wait; send fewer, or smaller ones", 1)
	}
	w.sit()
	return nil
}

// sit records that the work has a seat. If the work has ended or rests meanwhile, it frees the seat.
func (w *Work) sit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || w.seated || w.rests {
		w.shares.schedulers[w.class].release(w.tenant, 0)
		return
	}
	w.seated, w.since = true, time.Now()
}

// Pause gives up the seat, and reports whether the work had one.
func (w *Work) Pause() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seated {
		return false
	}
	w.seated = false
	w.shares.schedulers[w.class].release(w.tenant, time.Since(w.since))
	return true
}

// Rest gives up the seat until the next call of Compute, also if the request waits now.
func (w *Work) Rest() {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.rests = true
	w.mu.Unlock()
	w.Pause()
}

// pause gives up the seat until resume is called, and reports whether the work had one. resume takes
// a seat without waiting.
func (w *Work) pause() (resume func(), had bool) {
	if !w.Pause() {
		return func() {}, false
	}
	return func() {
		w.mu.Lock()
		scheduler, tenant := w.shares.schedulers[w.class], w.tenant
		w.mu.Unlock()
		scheduler.force(tenant)
		w.sit()
	}, true
}

// Computed reports whether the request of ctx has computed for longer than a light one does, since it
// got its seat.
func Computed(ctx context.Context) bool {
	w := From(ctx)
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seated && time.Since(w.since) > long
}

// Continue gives the seat of the request of ctx to another one, and waits for a seat of a heavy
// request. The request must hold no lock. An error is a Status for the client.
func Continue(ctx context.Context) error { return From(ctx).compute(ctx, Heavy) }

// Yield runs wait without the seat of the request, and then waits for a seat. The request
// must hold no lock. An error is that of ctx.
func (w *Work) Yield(ctx context.Context, wait func()) error {
	if !w.Pause() {
		wait()
		return nil
	}
	wait()
	w.mu.Lock()
	scheduler, tenant := w.shares.schedulers[w.class], w.tenant
	w.mu.Unlock()
	if err := scheduler.acquire(ctx, tenant, time.Hour); err != nil { // ctx ends earlier
		return err
	}
	w.sit()
	return nil
}

// Enter waits for admission. Requests of one tenant in different queues do not wait for
// each other; each queue has the full limit. The request is admitted until leave is called
// or the work ends. An error is a Status for the client.
func (w *Work) Enter(ctx context.Context, queue string) (leave func(), err error) {
	return w.join(ctx, w.shares.present, queue)
}

// Serve is Enter for the limit of requests at priority levels.
func (w *Work) Serve(ctx context.Context, queue string) (leave func(), err error) {
	return w.join(ctx, w.shares.served, queue)
}

// Watch counts the request as a watch until the work ends. It does not wait. An error is a
// Status for the client.
func (w *Work) Watch() error {
	if _, err := w.join(context.Background(), w.shares.watches, ""); err != nil {
		return apierrors.NewTooManyRequests(fmt.Sprintf("you and your workspaces have %d watches open; close some", w.shares.limits.Watches), 1)
	}
	limit, leave := w.shares.deliveries.enter(w.Tenant())
	w.events = limit
	w.OnEnd(leave)
	return nil
}

func (w *Work) join(ctx context.Context, l *scheduler, queue string) (leave func(), err error) {
	key := w.Tenant() + queue
	switch err := l.acquire(ctx, key, w.shares.limits.Timeout); {
	case errors.Is(err, errFull):
		return nil, apierrors.NewTooManyRequests("too many requests wait for you or your workspaces; send fewer at a time", 1)
	case err != nil:
		return nil, apierrors.NewTooManyRequests("too many requests at once from you or your workspaces; send fewer at a time", 1)
	}
	leave = sync.OnceFunc(func() { l.release(key, 0) })
	w.OnEnd(leave)
	return leave, nil
}

// Grow is [Grow] for this work.
func (w *Work) Grow(bytes int64) error {
	if w == nil || bytes == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || w.tenant == "" {
		return nil
	}
	more := max(0, w.bytes+bytes-w.shares.limits.Memory.Free) - w.counted
	if err := w.shares.memory.grow(w.tenant, more, w.counted); err != nil {
		return err
	}
	w.bytes, w.counted = w.bytes+bytes, w.counted+more
	return nil
}

// OnEnd calls f when the work ends, or at once if it has ended.
func (w *Work) OnEnd(f func()) {
	if w == nil {
		return
	}
	w.mu.Lock()
	if !w.over {
		w.onEnd = append(w.onEnd, f)
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	f()
}

// End releases all shares of the work. Further calls have no effect.
func (w *Work) End() {
	w.Pause()
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.over = true
	defer close(w.ended)
	w.shares.memory.shrink(w.tenant, w.counted)
	w.bytes, w.counted = 0, 0
	onEnd := w.onEnd
	w.onEnd = nil
	w.mu.Unlock()
	for _, f := range onEnd {
		f()
	}
}

// Ended returns a channel that is closed when the work has ended.
func (w *Work) Ended() <-chan struct{} { return w.ended }

// Branch returns a context with a work of its own, for a watch that is a part of the request of
// ctx. It counts for the same tenant until end is called. An error is a Status for the client.
func Branch(ctx context.Context) (_ context.Context, end func(), err error) {
	tenant := From(ctx).Tenant()
	if tenant == "" {
		return ctx, func() {}, nil
	}
	w := From(ctx).shares.Begin()
	w.For(tenant)
	return With(ctx, w), w.End, w.Watch()
}
