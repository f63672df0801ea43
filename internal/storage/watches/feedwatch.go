package watches

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
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/values"
)

// BeforeDeadline is how long before its timeout a watch gets a last bookmark.
const BeforeDeadline = 2 * time.Second

// A Source is the objects of one kind, for watches that follow the change feed and for lists of
// clusters.
type Source interface {
	// Resource returns the resource that the request is about.
	Resource(context.Context) keys.Resource
	// Transformer decrypts stored values.
	Transformer() values.Transformer
	// Raws reads a page of the newest objects in the scope of the request.
	Raws(ctx context.Context, key string, o storage.ListOptions, into *RawList) error
	// Past reads a page of the objects as of a revision.
	Past(ctx context.Context, key string, o storage.ListOptions, into *RawList) error
	// Raw returns the object of a framed value, which it keeps.
	Raw(framed []byte) (Raw, error)
	// Selects reports whether a predicate selects an object.
	Selects(r *Raw, p storage.SelectionPredicate) (bool, error)
	// Event decodes the object of an event. It reports false for an event to leave out.
	Event(e watch.Event, wildcard bool) (watch.Event, bool)
}

// A feedWatch is a watch of one kind in one cluster or in all. It begins with a list, or with
// the changes since a revision, and continues with a subscription to the change feed. It does
// not depend on the watch cache of its resource.
type feedWatch struct {
	Source
	all      *Watches
	ctx      context.Context // of the goroutine, ended by Stop
	cancel   context.CancelFunc
	key      string // of the object, or of a range if it ends with a slash
	options  storage.ListOptions
	wildcard bool
	scope    *registry.Scope // limits a watch of all clusters; nil for no limit
	label    *registry.Label // of the objects; nil for none
	sub      *feed.Subscription
	out      chan watch.Event

	members *membership.Cursor // at the changes of scope that the reader has
	cursor  int64              // the reader has every selected change up to it
	missed  int64              // changes up to it come from the history of etcd

	requests   *ProgressRequests // nil if the reader makes none
	bookmarked int64             // revision of the last bookmark
}

// Follow begins a watch of a source that follows the change feed.
func (all *Watches) Follow(ctx context.Context, s Source, key string, o storage.ListOptions) (watch.Interface, error) {
	if err := all.Refuse(); err != nil {
		return nil, err
	}
	rev, err := all.store.Epoch().ParseResourceVersion(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	resource := s.Resource(ctx)
	in, _ := cluster.From(ctx)
	w := &feedWatch{Source: s, all: all, key: key, options: o, wildcard: in == cluster.All, scope: registry.ScopeOf(ctx), requests: progressRequestsOf(ctx), cursor: int64(rev), out: make(chan watch.Event)}
	w.label = registry.LabelOf(ctx, resource.GroupResource())
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
		done = all.expect()
	}
	all.running.Go(func() {
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

func (w *feedWatch) feed() *feed.Feed { return w.all.store.Feed() }

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
		if w.cursor, err = w.all.store.Newest(w.ctx); err != nil {
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
		ending = w.all.ending
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
		case <-w.all.closing:
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
	every := w.all.BookmarkEvery
	if deadline, ok := w.ctx.Deadline(); ok {
		if left := time.Until(deadline) - BeforeDeadline; left > 0 {
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
	if w.feed().WaitFor(w.ctx, w.all.last.Load()) == nil {
		w.progress()
	}
}

func (w *feedWatch) bookmark(rev int64, annotations map[string]string) bool {
	w.bookmarked = rev
	r := &Raw{}
	r.ResourceVersion, r.Annotations = w.all.store.ResourceVersion(rev), annotations
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
	var now, was *Raw
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
func (w *feedWatch) read(e feed.Event, value []byte) (*Raw, error) {
	s := w.all.store
	framed, _, err := w.Transformer().Lenient().TransformFromStorage(w.ctx, value, values.Path(s.Prefix()+e.Key.Path()))
	if err != nil {
		return nil, err
	}
	r, err := w.Raw(framed)
	if err != nil {
		return nil, err
	}
	r.ResourceVersion = s.ResourceVersion(e.Revision)
	return &r, nil
}

// selected reports whether the watch selects an object of a cluster of which it covers a part.
func (w *feedWatch) selected(r *Raw, p membership.Part) (bool, error) {
	if !p.Has(r.Labels) {
		return false, nil
	}
	if w.options.Predicate.Empty() {
		return true, nil
	}
	ok, err := w.Selects(r, w.options.Predicate)
	if err != nil && w.wildcard {
		return false, nil // one tenant's bad value must not end the watch
	}
	return ok, err
}

// deliverEvent delivers an event.
func (w *feedWatch) deliverEvent(t watch.EventType, r *Raw) bool {
	e, ok := w.Event(watch.Event{Type: t, Object: r}, w.wildcard)
	return !ok || w.send(w.label.Event(e))
}

// fail ends the watch with an error.
func (w *feedWatch) fail(err error) bool {
	if w.ctx.Err() != nil {
		return false
	}
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return w.send(Failed(err))
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
	case <-w.all.closing:
	}
	return false
}

// Failed returns the event that ends a watch because of err.
func Failed(err error) watch.Event {
	status := apierrors.NewInternalError(err).Status()
	return watch.Event{Type: watch.Error, Object: &status}
}
