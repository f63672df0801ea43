package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	defaultWorkers = 4

	// A key that fails is retried after firstRetry, then after twice that, and so
	// on up to lastRetry. lastRetry is short enough that a repair of something
	// that no source watches is noticed soon. It is long enough that thousands
	// of broken objects cost little.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 5 * time.Minute

	// slowAfter is the time after which a key is slow, see [Loop.Slow].
	slowAfter = 3 * time.Second
)

// A Loop reconciles objects, one key at a time.
type Loop struct {
	// Name is for logs and metrics. It is unique among the loops of a server.
	Name string

	// On lists all sources that Do reads or that wake the loop.
	On []Source

	// Do reconciles one key. It must be level-based: it acts on the current state,
	// not on events, so it is safe to call at any time. The loop never calls it
	// concurrently for one key. Its context carries the key's cluster and a logger
	// with loop, cluster and key, and is cancelled when the loop stops.
	//
	// If Do returns nil, the key leaves the queue. If it returns [After], the key
	// is due again after that time. Any other error is retried with exponential
	// back-off. A panic counts as an error of that key.
	Do func(context.Context, Key) error

	// Workers is the maximum of keys that are reconciled concurrently; 0 means 4.
	// One tenant never occupies all of them, except if the maximum is 1; see
	// [Runner.Tenant]. Idle workers use no goroutine.
	Workers int

	// Slow is the maximum of keys that do not count among those of Workers, because they
	// have taken longer than three seconds. A loop sets it if Do waits for servers that
	// tenants have chosen, such as webhooks: one that hangs then holds a worker for three
	// seconds only.
	Slow int
}

// After returns a result of [Loop.Do] that makes the key due again in d, or earlier if
// a source wakes it. It does not count as a failure, even if it is wrapped.
func After(d time.Duration) error { return after(d) }

type after time.Duration

func (a after) Error() string { return "again in " + time.Duration(a).String() }

// A Runner runs loops. Its zero value runs them at once, without metrics and leader
// election.
type Runner struct {
	// Metrics, if not nil, count the work of the loops.
	Metrics *Metrics

	// Lead, if not nil, elects the leader. While this process leads, Lead calls run
	// with a context that it cancels when the lead is lost. It may call run many
	// times, but not concurrently. It returns after ctx has ended and the last call
	// of run has returned.
	Lead func(ctx context.Context, run func(context.Context))

	// Tenant, if not nil, returns the tenant of a cluster, or the cluster itself if it has
	// none or is not known yet. The loops are fair to tenants. If Tenant is nil, each cluster
	// is a tenant.
	Tenant func(cluster.Name) cluster.Name
}

// Run runs loops until ctx ends, and returns when all of them have stopped.
func (r Runner) Run(ctx context.Context, loops ...Loop) {
	run := func(ctx context.Context) { r.start(ctx, loops)() }
	if r.Lead != nil {
		r.Lead(ctx, func(term context.Context) {
			r.Metrics.leads(1)
			defer r.Metrics.leads(-1)
			run(term)
		})
		return
	}
	run(ctx)
}

// Start runs loops until ctx ends. The function that it returns waits until all of them have stopped.
// A loop whose sources are ready uses no goroutine while no key is due.
func Start(ctx context.Context, loops ...Loop) (wait func()) { return Runner{}.start(ctx, loops) }

func (r Runner) start(ctx context.Context, loops []Loop) (wait func()) {
	all := &sync.WaitGroup{}
	for _, l := range loops {
		all.Go(func() { l.start(ctx, r, all) })
	}
	return all.Wait
}

// start subscribes the loop, and starts it once its sources are ready. It stops when ctx ends.
func (l Loop) start(ctx context.Context, r Runner, running *sync.WaitGroup) {
	s := newScheduler(ctx, l, r)
	var unsubscribe []func()
	for _, on := range l.On {
		if on.Subscribe == nil {
			continue
		}
		if f := on.Subscribe(s.add); f != nil {
			unsubscribe = append(unsubscribe, f)
		}
	}
	running.Add(1)
	context.AfterFunc(ctx, func() {
		defer running.Done()
		s.stop()
		for _, f := range slices.Backward(unsubscribe) {
			f()
		}
	})
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
}

// A scheduler is a running loop: its queue and its workers. A worker is a goroutine
// that ends when no key is due.
type scheduler struct {
	loop    Loop
	ctx     context.Context // of this run of the loop
	metrics *Metrics
	tenant  func(cluster.Name) cluster.Name // nil if each cluster is a tenant
	workers int
	ended   sync.WaitGroup // workers, and the timer while it is armed

	mu       sync.Mutex // guards all below
	queue    queue
	started  bool
	stopped  bool
	busy     int // workers, without those of slow keys
	slow     int // keys for which others have been started
	overdue  []*run
	placing  bool // a worker looks up tenants, or will
	reported int  // queue depth last added to the metric
	timer    *time.Timer
	armed    bool
	wakes    time.Time // when the armed timer fires
}

func newScheduler(ctx context.Context, l Loop, r Runner) *scheduler {
	workers := cmp.Or(max(l.Workers, 0), defaultWorkers)
	return &scheduler{
		loop:    l,
		ctx:     ctx,
		metrics: r.Metrics,
		tenant:  r.Tenant,
		workers: workers,
		// One worker stays free for other tenants, however long the keys of
		// one tenant take.
		queue: queue{share: max(1, workers-1), byTenant: r.Tenant != nil},
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

// stop ends the queue and the timer, and waits for the workers.
func (s *scheduler) stop() {
	s.mu.Lock()
	s.stopped = true
	if s.armed && s.timer.Stop() {
		s.armed = false
		s.ended.Done()
	}
	s.queue = queue{share: s.queue.share, byTenant: s.queue.byTenant} // sources may keep s.add, and through it s
	s.report()
	s.mu.Unlock()
	s.ended.Wait()
}

// ending reports whether the loop is stopping. The caller holds mu.
func (s *scheduler) ending() bool { return s.stopped || s.ctx.Err() != nil }

// dispatch starts workers for waiting keys and arms the timer. The caller holds mu.
func (s *scheduler) dispatch() {
	for s.started && !s.ending() && s.busy < s.workers {
		it := s.queue.take()
		if it == nil && (s.placing || s.queue.fresh.first == nil) {
			break
		}
		s.placing = s.placing || it == nil
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

// arm sets the loop's only timer to the time when the first resting key is due. The
// timer may fire early, if that key was woken; fire then arms it again.
// The caller holds mu.
func (s *scheduler) arm() {
	at, ok := s.queue.nextWake()
	if !ok || s.ending() || s.armed && !at.Before(s.wakes) {
		return
	}
	if s.armed && !s.timer.Stop() {
		return // the timer is firing, and fire arms it again
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

// work is a worker: it reconciles it, and then further keys until none is due. If it is nil, the
// worker begins with place.
func (s *scheduler) work(it *item) {
	if it == nil {
		it = s.begin()
	}
	for it != nil {
		it = s.step(it)
	}
}

// begin looks up the tenants of new clusters, and returns the first key to reconcile.
func (s *scheduler) begin() *item {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place()
	return s.turn()
}

// place looks up the tenants of new clusters. It unlocks mu meanwhile: sources call add with
// locks that the look-up may need.
// The caller holds mu.
func (s *scheduler) place() {
	s.placing = true
	clusters := s.queue.unplaced()
	s.mu.Unlock()
	tenants := make([]cluster.Name, len(clusters))
	for i, c := range clusters {
		tenants[i] = s.tenant(c)
	}
	s.mu.Lock()
	s.placing = false
	if !s.stopped {
		s.queue.place(tenants)
	}
}

// turn returns the next key for a worker. Without one the worker ends.
// The caller holds mu.
func (s *scheduler) turn() *item {
	var next *item
	if !s.ending() {
		next = s.queue.take()
	}
	if next == nil {
		s.busy--
	}
	s.dispatch()
	return next
}

// step reconciles one key and returns the next. The bookkeeping is deferred, so that it
// also runs if Do ends the goroutine, as t.FailNow does.
func (s *scheduler) step(it *item) (next *item) {
	var until time.Time
	returned := false
	slow := s.whenSlow()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slow()
		if left {
			s.slow--
		}
		if s.ending() {
			if !left {
				s.busy--
			}
			return
		}
		s.queue.done(it, until)
		if left {
			s.dispatch()
			return
		}
		if !returned {
			s.busy--
			s.dispatch()
			return
		}
		if s.queue.fresh.first != nil && !s.placing {
			s.place()
		}
		next = s.turn()
	}()
	until = s.do(it)
	returned = true
	return nil
}

// A run is the work on one key by a worker.
type run struct {
	over bool // guarded by mu
	left bool // its worker has the place of another one; guarded by mu
}

// whenSlow starts another worker if ended is not called within slowAfter. The caller of ended holds mu.
// ended reports whether another worker has been started.
func (s *scheduler) whenSlow() (ended func() (left bool)) {
	if s.loop.Slow == 0 {
		return func() bool { return false }
	}
	r := &run{}
	timer := time.AfterFunc(slowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.over {
			return
		}
		s.overdue = append(s.overdue, r)
		s.leave()
	})
	return func() bool {
		timer.Stop()
		r.over = true
		s.overdue = slices.DeleteFunc(s.overdue, func(o *run) bool { return o == r })
		if r.left {
			s.slow--
			s.leave()
		}
		return r.left
	}
}

// leave starts workers in place of those with overdue keys. The caller holds mu.
func (s *scheduler) leave() {
	for len(s.overdue) > 0 && s.slow < s.loop.Slow && !s.ending() {
		s.overdue[0].left = true
		s.overdue = s.overdue[1:]
		s.slow++
		s.busy--
		s.dispatch()
	}
}

// do reconciles one key and returns when it is due again, zero if it is done.
func (s *scheduler) do(it *item) (until time.Time) {
	k := it.key
	log := klog.FromContext(s.ctx).WithValues("loop", s.loop.Name, "cluster", k.Cluster, "key", k.object())
	ctx := cluster.With(klog.NewContext(s.ctx, log), k.Cluster)

	began := time.Now()
	err := Safely(func() error { return s.loop.Do(ctx, k) })
	now := time.Now()
	s.metrics.worked(s.loop.Name, now.Sub(began))

	var again after
	var crash panicked
	switch {
	case err == nil:
		it.tries = 0
		return time.Time{}
	case s.ctx.Err() != nil:
		return time.Time{} // the loop is stopping, which probably caused the error
	case errors.As(err, &again):
		it.tries = 0
		return now.Add(max(0, time.Duration(again)))
	}
	wait := backOff(it.tries)
	it.tries++
	s.metrics.retried(s.loop.Name)
	switch {
	case errors.As(err, &crash):
		LogError(log, err, "loop panicked; will retry", "tries", it.tries, "in", wait)
	case apierrors.IsConflict(err):
		// The view was stale. It catches up by itself.
		log.V(4).Info("conflict; will retry", "tries", it.tries, "in", wait, "err", err)
	default:
		log.Error(err, "reconcile failed; will retry", "tries", it.tries, "in", wait)
	}
	return now.Add(wait)
}

// backOff returns the delay of a retry after tries earlier failures in a row.
func backOff(tries int) time.Duration {
	if tries >= 30 { // beyond lastRetry; avoids an overflow of the shift
		return lastRetry
	}
	return min(firstRetry<<tries, lastRetry)
}

// panicked is the error of a recovered panic.
type panicked struct {
	value any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// Unwrap returns the panic's value, if it was an error.
func (p panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// Safely calls f and turns a panic into an error, so that an object of one tenant
// cannot crash the server.
func Safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked{r, debug.Stack()}
		}
	}()
	return f()
}

// LogError logs an error, with the stack if it is that of a panic.
func LogError(log klog.Logger, err error, message string, keysAndValues ...any) {
	var crash panicked
	if errors.As(err, &crash) {
		keysAndValues = append(keysAndValues, "stack", string(crash.stack))
	}
	log.Error(err, message, keysAndValues...)
}
