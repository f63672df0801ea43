package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// replayPage is how many objects are read at once for a watch to begin with.
	replayPage = 500
	// slowReader is how long a reader may take for a change out of etcd's history
	// before its watch lets go of that: etcd's client holds what is not yet taken.
	slowReader = time.Second
	// beforeDeadline is when a watch that will time out tells where to resume.
	beforeDeadline = 2 * time.Second
)

// A customWatch is a watch of custom resources, in one cluster or in all. It begins
// with a list or with what changed since it was last there, and goes on with what
// the spine relays. Whether its resource has a cache makes no difference to it.
type customWatch struct {
	of       *custom
	ctx      context.Context // of the goroutine, ended by Stop
	cancel   context.CancelFunc
	key      string // of the object or, with a slash, range
	options  storage.ListOptions
	wildcard bool
	sub      *subscription
	out      chan watch.Event

	cursor int64 // the reader has every change up to it that it asked for
	missed int64 // up to here changes come from etcd
}

// Watch implements [storage.Interface].
func (c *custom) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	rev, err := c.Versioner().ParseResourceVersion(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	resource := c.multi.resource(ctx)
	in, _ := cluster.From(ctx)
	w := &customWatch{of: c, key: key, options: o, wildcard: in == cluster.All, cursor: int64(rev), out: make(chan watch.Event)}
	rest := strings.TrimPrefix(key, resource.prefix())
	if !w.wildcard {
		rest = strings.TrimPrefix(rest, "/"+string(in))
	}
	w.sub = newSubscription(scope{resource, in}, strings.Trim(rest, "/"), o.Recursive)
	if o.Recursive {
		w.key = strings.TrimSuffix(key, "/") + "/"
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	pay := func() {}
	if o.Predicate.AllowWatchBookmarks {
		pay = c.multi.store.farewell.owe()
	}
	c.multi.store.drains.Go(func() {
		defer pay()
		w.run()
	})
	return w, nil
}

// Stop implements [watch.Interface].
func (w *customWatch) Stop() { w.cancel() }

// ResultChan implements [watch.Interface].
func (w *customWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *customWatch) run() {
	defer close(w.out)
	defer w.cancel()
	defer w.relay().unsubscribe(w.sub)
	begin := w.resume
	if w.beginsWithList() {
		begin = w.replay
	}
	if !begin() {
		return
	}
	flowcontrol.WatchInitialized(w.ctx)
	for w.cursor < w.missed {
		if !w.catchUp() {
			return
		}
	}
	w.follow()
}

func (w *customWatch) relay() *relay { return w.of.multi.store.spine.relay }

func (w *customWatch) beginsWithList() bool {
	if w.options.SendInitialEvents == nil {
		return w.cursor == 0
	}
	return *w.options.SendInitialEvents
}

func (w *customWatch) subscribe(after int64) bool {
	var err error
	w.missed, err = w.relay().subscribe(w.ctx, w.sub, after)
	return err == nil
}

// resume goes on from the revision that the reader named, or now if it named none.
func (w *customWatch) resume() bool {
	if w.cursor == 0 {
		var err error
		if w.cursor, err = w.of.multi.store.newest(w.ctx); err != nil {
			return w.fail(err)
		}
	}
	return w.subscribe(w.cursor)
}

// replay delivers what exists, and subscribes to what changed since.
func (w *customWatch) replay() bool {
	o := storage.ListOptions{ResourceVersion: w.options.ResourceVersion, Recursive: w.options.Recursive, Predicate: storage.Everything}
	if w.cursor > 0 {
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w.cursor = 0
	ctx, done := paged(w.ctx)
	for {
		var page RawList
		done() // with the page before
		o.Predicate.Limit = replayPage
		if err := w.of.raws(ctx, w.key, o, &page); err != nil {
			return w.fail(err)
		}
		if w.cursor == 0 {
			rev, err := strconv.ParseInt(page.ResourceVersion, 10, 64)
			if err != nil {
				return w.fail(err)
			}
			if w.cursor = rev; !w.subscribe(rev) {
				return false
			}
		}
		for i := range page.Items {
			r := &page.Items[i]
			if ok, err := w.selects(r); err != nil {
				return w.fail(err)
			} else if ok && !w.give(watch.Added, r) {
				return false
			}
		}
		if page.Continue == "" {
			done()
			break
		}
		o.ResourceVersion, o.ResourceVersionMatch, o.Predicate.Continue = "", "", page.Continue
	}
	if w.options.SendInitialEvents == nil || !w.options.Predicate.AllowWatchBookmarks {
		return true
	}
	return w.bookmark(w.cursor, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// paged returns a context for what reads one page after the other. The function returned
// lets go of what was read.
func paged(ctx context.Context) (context.Context, func()) {
	held := int64(0)
	counted := WithLoad(ctx, func(bytes int64) error {
		err := grow(ctx, bytes)
		if err == nil {
			held += bytes
		}
		return err
	})
	return counted, func() {
		_ = grow(ctx, -held) // which is always possible
		held = 0
	}
}

// catchUp delivers changes out of etcd's history, until it has those that the relay
// did not remember.
func (w *customWatch) catchUp() bool {
	s := w.of.multi.store
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithRev(w.cursor + 1), clientv3.WithPrevKV(), clientv3.WithProgressNotify()}
	if w.options.Recursive {
		options = append(options, clientv3.WithPrefix())
	}
	changes := s.direct.Watch(clientv3.WithRequireLeader(ctx), s.prefix+w.key, options...)
	for {
		var resp clientv3.WatchResponse
		var ok bool
		select {
		case resp, ok = <-changes:
		case <-s.closing:
		}
		if err := resp.Err(); errors.Is(err, rpctypes.ErrCompacted) {
			return w.fail(expired(w.cursor))
		} else if !ok || err != nil {
			return false // the reader resumes
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision > w.missed {
				w.cursor = w.missed
				return true
			}
			slow, ok := w.past(e, cancel)
			if slow || !ok {
				return ok
			}
		}
		if resp.IsProgressNotify() && resp.Header.Revision >= w.missed {
			w.cursor = w.missed
			return true
		}
	}
}

// past delivers a change out of etcd's history. It tells whether the reader was so
// slow that what else came of it was let go.
func (w *customWatch) past(e *clientv3.Event, letGo func()) (slow, ok bool) {
	if e.PrevKv == nil && !e.IsCreate() {
		return false, w.fail(expired(w.cursor))
	}
	w.cursor = e.Kv.ModRevision
	k, ok := parseKey(strings.TrimPrefix(string(e.Kv.Key), w.of.multi.store.prefix))
	if !ok {
		return false, true
	}
	change := Event{Key: k, Revision: e.Kv.ModRevision}
	if e.Type != clientv3.EventTypeDelete {
		change.value = present(e.Kv.Value)
	}
	if e.PrevKv != nil {
		change.previous = present(e.PrevKv.Value)
	}
	late := time.AfterFunc(slowReader, letGo)
	ok = w.deliver(change)
	return !late.Stop(), ok
}

func expired(rev int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", rev))
}

// follow delivers what is relayed, for as long as the reader keeps up.
func (w *customWatch) follow() {
	timer := time.NewTimer(w.untilBookmark())
	defer timer.Stop()
	var ending <-chan struct{}
	if w.options.Predicate.AllowWatchBookmarks {
		ending = w.of.multi.store.farewell.begun
	}
	for w.batch() {
		select {
		case <-w.sub.more:
		case <-ending:
			w.end()
			return
		case <-timer.C:
			if !w.progress() {
				return
			}
			timer.Reset(w.untilBookmark())
		case <-w.ctx.Done():
			return
		case <-w.of.multi.store.closing:
			return
		}
	}
}

// batch delivers what waits.
func (w *customWatch) batch() bool {
	for {
		e, ok, ended := w.sub.next()
		switch {
		case ended:
			return false
		case !ok:
			return true
		case e.Revision > w.cursor && !w.deliver(e):
			return false
		}
	}
}

// untilBookmark returns when the reader is to hear how far the watch is: at the
// pace of upstream's caches, and once more shortly before it times out.
func (w *customWatch) untilBookmark() time.Duration {
	if !w.options.Predicate.AllowWatchBookmarks {
		return math.MaxInt64
	}
	every := w.of.multi.store.limits.bookmark
	if deadline, ok := w.ctx.Deadline(); ok {
		if left := time.Until(deadline) - beforeDeadline; left > 0 {
			return min(every, left)
		}
	}
	return every
}

// progress tells the reader how far the watch is.
func (w *customWatch) progress() bool {
	now := w.relay().applied() // what happened by now is in the batch
	return w.batch() && w.bookmark(max(now, w.cursor), nil)
}

// end tells the reader where to resume in the next process.
func (w *customWatch) end() {
	s := w.of.multi.store
	if s.spine.WaitFor(w.ctx, s.farewell.rev.Load()) == nil {
		w.progress()
	}
}

func (w *customWatch) bookmark(rev int64, annotations map[string]string) bool {
	r := &Raw{}
	r.ResourceVersion, r.Annotations = strconv.FormatInt(rev, 10), annotations
	return w.give(watch.Bookmark, r)
}

// deliver gives the reader what a change is to it.
func (w *customWatch) deliver(e Event) bool {
	w.cursor = e.Revision
	var now, was *Raw
	var err error
	has, had := false, e.previous != nil
	if e.value != nil {
		if now, err = w.raw(e, e.value); err == nil {
			has, err = w.selects(now)
		}
		if err != nil {
			return w.fail(err)
		}
	}
	if had && (now == nil || !w.options.Predicate.Empty()) {
		if was, err = w.raw(e, e.previous); err == nil {
			had, err = w.selects(was)
		}
		had = had && err == nil // what could not be read was not delivered
	}
	switch {
	case has && had:
		return w.give(watch.Modified, now)
	case has:
		return w.give(watch.Added, now)
	case had:
		return w.give(watch.Deleted, was)
	default:
		return true
	}
}

// raw returns an object as it is in a change.
func (w *customWatch) raw(e Event, value []byte) (*Raw, error) {
	s := w.of.multi.store
	t := s.keyed(w.of.cfg.GroupResource)
	t.lenient = true
	framed, _, err := t.TransformFromStorage(w.ctx, value, belowPrefix(s.prefix+e.Key.full()))
	if err != nil {
		return nil, err
	}
	r, err := rawOf(framed, s.stamps)
	if err != nil {
		return nil, err
	}
	r.ResourceVersion = strconv.FormatInt(e.Revision, 10)
	return &r, nil
}

// selects reports whether the reader asked for an object.
func (w *customWatch) selects(r *Raw) (bool, error) {
	p := w.options.Predicate
	switch {
	case p.Empty():
		return true, nil
	case cachedFields(p.Field):
		p.GetAttrs = rawAttrs
		return p.Matches(r)
	}
	o, err := w.of.decode(r)
	if err != nil {
		if w.wildcard {
			return false, nil // one tenant's bad value is not everybody's
		}
		return false, err
	}
	p.GetAttrs = w.of.attrs
	return p.Matches(o)
}

// give delivers an event of this schema.
func (w *customWatch) give(t watch.EventType, r *Raw) bool {
	e, ok := w.of.event(watch.Event{Type: t, Object: r}, w.wildcard)
	return !ok || w.send(e)
}

// fail ends the watch with an error.
func (w *customWatch) fail(err error) bool {
	if w.ctx.Err() != nil {
		return false
	}
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return w.send(failed(err))
	}
	status := known.Status()
	return w.send(watch.Event{Type: watch.Error, Object: &status})
}

// send delivers an event, and reports whether there may be another.
func (w *customWatch) send(e watch.Event) bool {
	select {
	case w.out <- e:
		return e.Type != watch.Error
	case <-w.ctx.Done():
	case <-w.of.multi.store.closing:
	}
	return false
}
