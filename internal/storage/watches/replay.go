package watches

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
)

// ReplayPage is the number of objects in a page of the initial list of a watch.
const ReplayPage = 500

// replay delivers the existing objects, and subscribes to later changes.
func (w *feedWatch) replay() bool {
	o := storage.ListOptions{ResourceVersion: w.options.ResourceVersion, Recursive: w.options.Recursive, Predicate: storage.Everything}
	if w.cursor > 0 {
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w.cursor = 0
	if w.scope != nil && w.scope.Sparse {
		return w.replayMembers()
	}
	ctx, done := w.ctx, paged(w.ctx)
	for {
		var page RawList
		done() // of the page before
		o.Predicate.Limit = ReplayPage
		if err := w.Raws(ctx, w.key, o, &page); err != nil {
			return w.fail(err)
		}
		if w.cursor == 0 {
			rev, err := w.all.store.Epoch().Revision(page.ResourceVersion)
			if err != nil {
				return w.fail(err)
			}
			if w.cursor = rev; !w.subscribe(rev) || !w.scopeAt(rev) {
				return false
			}
		}
		for i := range page.Items {
			r := &page.Items[i]
			p, _ := w.covers(cluster.Of(r), w.cursor)
			if ok, err := w.selected(r, p); err != nil {
				return w.fail(err)
			} else if ok && !w.deliverEvent(watch.Added, r) {
				return false
			}
		}
		if page.Continue == "" {
			done()
			break
		}
		o.ResourceVersion, o.ResourceVersionMatch, o.Predicate.Continue = "", "", page.Continue
	}
	return w.replayed()
}

// replayed delivers the bookmark after the existing objects, if the reader wants one.
func (w *feedWatch) replayed() bool {
	if w.options.SendInitialEvents == nil || !w.options.Predicate.AllowWatchBookmarks {
		return true
	}
	return w.bookmark(w.cursor, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

// paged returns a function that gives back the memory counted since paged was called: a
// list in pages holds one page at a time.
func paged(ctx context.Context) func() {
	before := fair.Held(ctx)
	return func() { _ = fair.Grow(ctx, before-fair.Held(ctx)) } // less memory is always granted
}

// errStopped ends pages.
var errStopped = errors.New("the reader has stopped")

// pages calls each for the objects of a range as of a revision, until it returns false.
func (all *Watches) pages(ctx context.Context, s Source, key string, at int64, each func(*Raw) (bool, error)) error {
	o := storage.ListOptions{
		ResourceVersion: all.store.ResourceVersion(at), ResourceVersionMatch: metav1.ResourceVersionMatchExact, Recursive: true, Predicate: storage.Everything,
	}
	done := paged(ctx)
	for {
		var page RawList
		o.Predicate.Limit = ReplayPage
		if err := s.Past(ctx, key, o, &page); err != nil {
			return err
		}
		for i := range page.Items {
			if more, err := each(&page.Items[i]); err != nil {
				return err
			} else if !more {
				return errStopped
			}
		}
		done()
		if page.Continue == "" {
			return nil
		}
		o.ResourceVersion, o.ResourceVersionMatch, o.Predicate.Continue = "", "", page.Continue
	}
}
