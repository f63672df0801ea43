package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	defaultWorkers = 4

	// A key that fails is tried again after firstRetry, then after twice that,
	// and so on up to lastRetry: often enough that a tenant who repaired
	// something that nothing watches need not ask, and seldom enough that
	// thousands of broken objects cost nothing.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 5 * time.Minute
)

// A Loop brings objects, one key at a time, to the state that they ask for.
type Loop struct {
	// Name is for logs and metrics. It is unique among the loops of a server.
	Name string

	// On lists everything that Do reads, and what wakes it.
	On []Source

	// Do works on one key: what it finds there decides what it does, not what
	// happened before, so it is safe to call again at any time. It is never
	// called twice at once for one key. Its context carries the key's cluster
	// and a logger that names loop, cluster and key, and ends when the loop is
	// to stop.
	//
	// A key is done with when Do returns nil, again due when it returns
	// [After], and tried again with exponential back-off on any other error. A
	// panic is an error of the key it happened for.
	Do func(context.Context, Key) error

	// Workers is how many keys are worked on at once; 0 means 4. One tenant
	// never holds them all, except if there is only one. A worker costs
	// nothing while there is nothing to do.
	Workers int
}

// After, returned by [Loop.Do], asks for the key again in d, or earlier if a
// source wakes it. It is not a failure, also if wrapped.
func After(d time.Duration) error { return after(d) }

type after time.Duration

func (a after) Error() string { return "again in " + time.Duration(a).String() }

// A Runner says how loops run. Its zero value runs them here and now.
type Runner struct {
	// Metrics, if not nil, count what the loops do.
	Metrics *Metrics

	// Lead, if not nil, decides when the loops run: it calls run with a context
	// that ends when they have to stop, for example when a lease is lost, any
	// number of times, one after the other. It returns when ctx has ended and
	// the last call of run has returned.
	Lead func(ctx context.Context, run func(context.Context))
}

// Run runs loops until ctx ends, and returns when all of them have stopped.
func (r Runner) Run(ctx context.Context, loops ...Loop) {
	run := func(ctx context.Context) {
		var all sync.WaitGroup
		for _, l := range loops {
			all.Go(func() { l.run(ctx, r.Metrics) })
		}
		all.Wait()
	}
	if r.Lead != nil {
		r.Lead(ctx, run)
		return
	}
	run(ctx)
}

func (l Loop) run(ctx context.Context, m *Metrics) {
	s := newScheduler(ctx, l, m)
	for _, on := range l.On {
		if on.Subscribe == nil {
			continue
		}
		if unsubscribe := on.Subscribe(s.add); unsubscribe != nil {
			defer unsubscribe()
		}
	}
	defer s.stop()
	for _, on := range l.On {
		if on.Ready == nil {
			continue
		}
		select {
		case <-on.Ready:
		case <-ctx.Done():
			return
		}
	}
	s.start()
	<-ctx.Done()
}

// A scheduler is a running loop: the queue, and the workers that empty it.
// Workers are goroutines that exist while there is something to do.
type scheduler struct {
	loop    Loop
	ctx     context.Context // of this run of the loop, which the scheduler is
	metrics *Metrics
	workers int
	ended   sync.WaitGroup // workers, and the timer while it is armed

	mu       sync.Mutex // guards all below
	queue    queue
	started  bool
	stopped  bool
	busy     int // workers
	reported int // depth that the metric shows
	timer    *time.Timer
	armed    bool
	wakes    time.Time // when armed
}

func newScheduler(ctx context.Context, l Loop, m *Metrics) *scheduler {
	workers := cmp.Or(max(l.Workers, 0), defaultWorkers)
	return &scheduler{
		loop:    l,
		ctx:     ctx,
		metrics: m,
		workers: workers,
		// All but one: enough for a lone tenant, and however long its keys
		// take, the next tenant's wait for nothing.
		queue: queue{share: max(1, workers-1)},
	}
}

func (s *scheduler) add(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if s.queue.add(k) {
		s.metrics.added(s.loop.Name)
	}
	s.dispatch()
}

func (s *scheduler) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	s.dispatch()
}

// stop returns when no key is worked on any more.
func (s *scheduler) stop() {
	s.mu.Lock()
	s.stopped = true
	if s.armed && s.timer.Stop() {
		s.armed = false
		s.ended.Done()
	}
	s.queue = queue{share: s.queue.share} // so that sources, which know add, hold nothing
	s.report()
	s.mu.Unlock()
	s.ended.Wait()
}

// ending reports whether no more keys are to be worked on. Called locked.
func (s *scheduler) ending() bool { return s.stopped || s.ctx.Err() != nil }

// dispatch hands waiting keys to new workers and arms the timer. Called locked.
func (s *scheduler) dispatch() {
	for s.started && !s.ending() && s.busy < s.workers {
		it := s.queue.take()
		if it == nil {
			break
		}
		s.busy++
		s.ended.Go(func() { s.work(it) })
	}
	s.report()
	s.arm()
}

func (s *scheduler) report() {
	s.metrics.depth(s.loop.Name, s.queue.waiting-s.reported)
	s.reported = s.queue.waiting
}

// arm sets the one timer of the loop to the time when the first key has rested.
// It may go off early, when that key was woken; then it is just armed again.
func (s *scheduler) arm() {
	at, ok := s.queue.nextWake()
	if !ok || s.ending() || s.armed && !at.Before(s.wakes) {
		return
	}
	if s.armed && !s.timer.Stop() {
		return // it is going off just now, and then arms itself
	}
	if !s.armed {
		s.armed = true
		s.ended.Add(1)
	}
	s.wakes = at
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(at), s.fire)
		return
	}
	s.timer.Reset(time.Until(at))
}

func (s *scheduler) fire() {
	defer s.ended.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	s.queue.wake(time.Now())
	s.dispatch()
}

// work is a worker: it works on a key and then on others while there are any.
func (s *scheduler) work(it *item) {
	for it != nil {
		it = s.step(it)
	}
}

// step works on one key and returns the next. The bookkeeping is deferred, so
// that it also happens if Do ends the goroutine, as a failing test does.
func (s *scheduler) step(it *item) (next *item) {
	var until time.Time
	returned := false
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ending() {
			s.busy--
			return
		}
		s.queue.done(it, until)
		if returned {
			next = s.queue.take()
		}
		if next == nil {
			s.busy--
		}
		s.dispatch()
	}()
	until = s.do(it)
	returned = true
	return nil
}

// do works on one key and returns when it is due again, if at all.
func (s *scheduler) do(it *item) (until time.Time) {
	k := it.key
	log := klog.FromContext(s.ctx).WithValues("loop", s.loop.Name, "cluster", k.Cluster, "key", k.object())
	ctx := cluster.With(klog.NewContext(s.ctx, log), k.Cluster)

	began := time.Now()
	err := safely(func() error { return s.loop.Do(ctx, k) })
	now := time.Now()
	s.metrics.worked(s.loop.Name, now.Sub(began))

	var again after
	var crash panicked
	switch {
	case err == nil:
		it.tries = 0
		return time.Time{}
	case s.ctx.Err() != nil:
		return time.Time{} // stopping, which is probably why it failed
	case errors.As(err, &again):
		it.tries = 0
		return now.Add(max(0, time.Duration(again)))
	}
	wait := backOff(it.tries)
	it.tries++
	s.metrics.retried(s.loop.Name)
	switch {
	case errors.As(err, &crash):
		log.Error(err, "loop panicked; will retry", "tries", it.tries, "in", wait, "stack", string(crash.stack))
	case apierrors.IsConflict(err):
		// The view was behind what it was saved against; it catches up by itself.
		log.V(4).Info("conflict; will retry", "tries", it.tries, "in", wait, "err", err)
	default:
		log.Error(err, "reconcile failed; will retry", "tries", it.tries, "in", wait)
	}
	return now.Add(wait)
}

// backOff returns how long to wait after a failure that follows so many others.
func backOff(tries int) time.Duration {
	if tries >= 30 { // far beyond lastRetry, and short of an overflow
		return lastRetry
	}
	return min(firstRetry<<tries, lastRetry)
}

// panicked is the error that a panic becomes.
type panicked struct {
	value any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// Unwrap returns the error that was panicked with, if it was one.
func (p panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// safely calls f and turns a panic into an error, since one tenant's object
// must not stop the server for all.
func safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked{r, debug.Stack()}
		}
	}()
	return f()
}
