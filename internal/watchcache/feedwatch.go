package watchcache

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// beforeDeadline is how long before its timeout a watch gets a last bookmark.
const beforeDeadline = 2 * time.Second

// A source is the objects of one kind that a [feedWatch] reads.
type source interface {
	of() *Caches
	resource(context.Context) keys.Resource
	transformer() values.Transformer
	// raws reads a page of the newest objects in the scope of the request.
	raws(ctx context.Context, key string, o storage.ListOptions, into *rawList) error
	// past reads a page of the objects as of a revision.
	past(ctx context.Context, key string, o storage.ListOptions, into *rawList) error
	// raw returns the object of a framed value, which it keeps.
	raw(framed []byte) (raw, error)
	// selects reports whether a predicate selects an object.
	selects(r *raw, p storage.SelectionPredicate) (bool, error)
	// event decodes the object of an event. It reports false for an event to leave out.
	event(e watch.Event, wildcard bool) (watch.Event, bool)
}

// A feedWatch is a watch of one kind in one cluster or in all. It begins with a list, or with
// the changes since a revision, and continues with a subscription to the change feed. It does
// not depend on the watch cache of its resource.
type feedWatch struct {
	source
	ctx      context.Context // of the goroutine, ended by Stop
	cancel   context.CancelFunc
	key      string // of the object, or of a range if it ends with a slash
	options  storage.ListOptions
	wildcard bool
	scope    *store.Scope // limits a watch of all clusters; nil for no limit
	label    *store.Label // of the objects; nil for none
	sub      *feed.Subscription
	out      chan watch.Event

	members *feed.SetCursor // at the changes of scope that the reader has
	cursor  int64           // the reader has every selected change up to it
	missed  int64           // changes up to it come from the history of etcd

	requests   *ProgressRequests // nil if the reader makes none
	bookmarked int64             // revision of the last bookmark
}

// Watch implements [storage.Interface].
func (c *custom) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if encodesEvents(ctx) {
		return watchFeed(ctx, encodedEvents{c}, key, o)
	}
	return watchFeed(ctx, c, key, o)
}

// watchFeed begins a watch of a source.
func watchFeed(ctx context.Context, s source, key string, o storage.ListOptions) (watch.Interface, error) {
	c := s.of()
	if err := c.final.refuse(); err != nil {
		return nil, err
	}
	rev, err := c.store.Epoch().ParseResourceVersion(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	resource := s.resource(ctx)
	in, _ := cluster.From(ctx)
	w := &feedWatch{source: s, key: key, options: o, wildcard: in == cluster.All, scope: store.ScopeOf(ctx), requests: progressRequestsOf(ctx), cursor: int64(rev), out: make(chan watch.Event)}
	w.label = store.LabelOf(ctx, resource.GroupResource())
	rest := strings.TrimPrefix(key, resource.Prefix())
	if !w.wildcard {
		rest = strings.TrimPrefix(rest, "/"+string(in))
	}
	w.sub = feed.NewSubscription(resource, in, strings.Trim(rest, "/"), o.Recursive)
	if w.scope != nil && w.scope.Sparse {
		w.sub.Within(w.scope.Set)
	}
	if o.Recursive {
		w.key = strings.TrimSuffix(key, "/") + "/"
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	done := func() {}
	if o.Predicate.AllowWatchBookmarks {
		done = c.final.expect()
	}
	c.watches.Go(func() {
		defer done()
		w.run()
	})
	return w, nil
}

// Stop implements [watch.Interface].
func (w *feedWatch) Stop() { w.cancel() }

// ResultChan implements [watch.Interface].
func (w *feedWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *feedWatch) run() {
	defer close(w.out)
	defer w.cancel()
	defer w.feed().Unsubscribe(w.sub)
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

func (w *feedWatch) feed() *feed.Feed { return w.of().store.Feed() }

func (w *feedWatch) beginsWithList() bool {
	if w.options.SendInitialEvents == nil {
		return w.cursor == 0
	}
	return *w.options.SendInitialEvents
}

func (w *feedWatch) subscribe(after int64) bool {
	var err error
	w.missed, err = w.feed().Subscribe(w.ctx, w.sub, after)
	return err == nil
}

// resume continues from the revision of the request, or from now if it has none.
func (w *feedWatch) resume() bool {
	if w.cursor == 0 {
		var err error
		if w.cursor, err = w.of().store.Newest(w.ctx); err != nil {
			return w.fail(err)
		}
	}
	return w.subscribe(w.cursor) && w.scopeAt(w.cursor)
}

// follow delivers the changes of the subscription, as long as the reader keeps up.
func (w *feedWatch) follow() {
	timer := time.NewTimer(w.untilBookmark())
	defer timer.Stop()
	var ending <-chan struct{}
	if w.options.Predicate.AllowWatchBookmarks {
		ending = w.of().final.begun
	}
	for changed := w.scopeChanged(); w.upToDate(); changed = w.scopeChanged() {
		asked, ok := w.report()
		if !ok {
			return
		}
		select {
		case <-asked:
		case <-w.sub.More():
		case <-changed:
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
		case <-w.of().closing:
			return
		}
	}
}

// batch delivers the pending changes.
func (w *feedWatch) batch() bool {
	for {
		e, ok, ended := w.sub.Next()
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

// untilBookmark returns the time until the next bookmark: the interval of upstream's
// caches, or less shortly before the timeout of the watch.
func (w *feedWatch) untilBookmark() time.Duration {
	if !w.options.Predicate.AllowWatchBookmarks {
		return math.MaxInt64
	}
	every := w.of().limits.bookmark
	if deadline, ok := w.ctx.Deadline(); ok {
		if left := time.Until(deadline) - beforeDeadline; left > 0 {
			return min(every, left)
		}
	}
	return every
}

// progress delivers a bookmark.
func (w *feedWatch) progress() bool {
	return w.upToDate() && w.bookmark(w.cursor, nil)
}

// end delivers the final bookmark.
func (w *feedWatch) end() {
	c := w.of()
	if c.store.Feed().WaitFor(w.ctx, c.final.rev.Load()) == nil {
		w.progress()
	}
}

func (w *feedWatch) bookmark(rev int64, annotations map[string]string) bool {
	w.bookmarked = rev
	r := &raw{}
	r.ResourceVersion, r.Annotations = w.of().store.ResourceVersion(rev), annotations
	return w.deliverEvent(watch.Bookmark, r)
}

// deliver delivers a change as the event that it is for the selection of the reader.
func (w *feedWatch) deliver(e feed.Event) bool {
	if !w.rescope(e.Revision) {
		return false
	}
	w.cursor = e.Revision
	p, stays := w.partAt(e.Key.Cluster, e.Revision)
	if !stays {
		return true // the cluster is outside, or the reader got its objects with it
	}
	var now, was *raw
	var err error
	has, had := false, e.Previous != nil
	if e.Value != nil {
		if now, err = readsOf(e).after(w, e); err == nil {
			has, err = w.selected(now, p)
		}
		if err != nil {
			return w.fail(err)
		}
	}
	if had && (now == nil || p.String() != "" || !w.options.Predicate.Empty()) {
		if was, err = readsOf(e).before(w, e); err != nil {
			return w.fail(err)
		}
		had, err = w.selected(was, p)
		had = had && err == nil // an object that cannot be selected was not delivered before
	}
	switch {
	case !w.stillCovers(e.Key.Cluster, p):
		return has || !had || w.deliverEvent(watch.Deleted, nameOf(was))
	case has && had:
		return w.deliverEvent(watch.Modified, now)
	case has:
		return w.deliverEvent(watch.Added, now)
	case had:
		return w.deliverEvent(watch.Deleted, was)
	default:
		return true
	}
}

// read returns the object of an event with one of its values.
func (w *feedWatch) read(e feed.Event, value []byte) (*raw, error) {
	s := w.of().store
	framed, _, err := w.transformer().Lenient().TransformFromStorage(w.ctx, value, values.Path(s.Prefix()+e.Key.Path()))
	if err != nil {
		return nil, err
	}
	r, err := w.raw(framed)
	if err != nil {
		return nil, err
	}
	r.ResourceVersion = s.ResourceVersion(e.Revision)
	return &r, nil
}

// selected reports whether the watch selects an object of a cluster of which it covers a part.
func (w *feedWatch) selected(r *raw, p feed.Part) (bool, error) {
	if !p.Has(r.Labels) {
		return false, nil
	}
	if w.options.Predicate.Empty() {
		return true, nil
	}
	ok, err := w.selects(r, w.options.Predicate)
	if err != nil && w.wildcard {
		return false, nil // one tenant's bad value must not end the watch
	}
	return ok, err
}

// deliverEvent delivers an event.
func (w *feedWatch) deliverEvent(t watch.EventType, r *raw) bool {
	e, ok := w.event(watch.Event{Type: t, Object: r}, w.wildcard)
	return !ok || w.send(w.label.Event(e))
}

// fail ends the watch with an error.
func (w *feedWatch) fail(err error) bool {
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

// send delivers an event, and reports whether another may follow.
func (w *feedWatch) send(e watch.Event) bool {
	select {
	case w.out <- e:
		return e.Type != watch.Error
	case <-w.ctx.Done():
	case <-w.of().closing:
	}
	return false
}
