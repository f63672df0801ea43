package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

type scopeKey struct{}

// WithScope returns a context in which lists and watches of custom resources in all clusters
// are limited to the clusters of a set. A watch delivers the objects of a cluster that enters
// the set as added, and those of a cluster that leaves it as deleted. Lists are complete: they
// ignore a limit, because the tokens and counts of pages would tell of other clusters.
func WithScope(ctx context.Context, s *feed.Set) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// scopeOf returns the scope of a request to all clusters, nil if it has none.
func scopeOf(ctx context.Context) *feed.Set {
	s, _ := ctx.Value(scopeKey{}).(*feed.Set)
	if s == nil || !isWildcard(ctx) {
		return nil
	}
	return s
}

// unpaged removes the paging from the options of a request within a scope.
func (m *multi) unpaged(o storage.ListOptions) (storage.ListOptions, error) {
	switch {
	case m.kind.Root != keys.Custom:
		return o, apierrors.NewInternalError(fmt.Errorf("%s in a set of clusters: only custom resources can be listed so", m.kind.Resource))
	case o.Predicate.Continue != "":
		return o, apierrors.NewBadRequest("lists of this view have a single page: leave out the parameter continue")
	}
	o.Predicate.Limit = 0
	return o, nil
}

// scoped removes, from the items of a list at a revision, those of clusters that were not in
// the scope of the request then.
func scoped[T any](ctx context.Context, s *Store, resourceVersion string, items []T, of func(*T) cluster.Name) ([]T, error) {
	scope := scopeOf(ctx)
	if scope == nil {
		return items, nil
	}
	rev, err := s.epoch.Revision(resourceVersion)
	if err != nil {
		return nil, err
	}
	if err := s.feed.Await(ctx, rev); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(items, func(item T) bool { return !scope.Has(of(&item), rev) }), nil
}

// has reports whether the watch covered a cluster at a revision that it has reached.
func (w *customWatch) has(c cluster.Name, at int64) bool {
	return w.scope == nil || w.scope.Has(c, at)
}

// scopeAt begins to follow the scope after a revision.
func (w *customWatch) scopeAt(rev int64) bool {
	if w.scope == nil {
		return true
	}
	if err := w.feed().WaitFor(w.ctx, rev); err != nil {
		return w.fail(err)
	}
	w.members = w.scope.After(rev)
	return true
}

// scopeChanged returns a channel that is closed when the scope changes, nil for none.
func (w *customWatch) scopeChanged() <-chan struct{} {
	if w.scope == nil {
		return nil
	}
	return w.scope.Changed()
}

// upToDate delivers the changes of objects and of the scope up to the applied revision.
func (w *customWatch) upToDate() bool {
	now := w.feed().Revision()
	if w.scope != nil {
		now = max(now, w.scope.Newest()) // a change of the scope is known before it is applied everywhere
		if w.feed().WaitFor(w.ctx, now) != nil {
			return false
		}
	}
	if !w.batch() || !w.rescope(now) { // the batch has all changes of objects
		return false
	}
	w.cursor = max(now, w.cursor)
	return true
}

// rescope delivers the objects of the clusters that enter and leave the scope up to a
// revision.
func (w *customWatch) rescope(rev int64) bool {
	if w.scope == nil {
		return true
	}
	if err := w.feed().WaitFor(w.ctx, rev); err != nil {
		return w.fail(err)
	}
	var held []*Raw
	changes, ok := w.members.To(rev)
	if !ok {
		return w.fail(expired(w.cursor))
	}
	for i, c := range changes {
		last, ok := w.cross(c)
		if !ok {
			return false
		}
		held = append(held, last...)
		if i+1 < len(changes) && changes[i+1].Revision == c.Revision {
			continue
		}
		for _, r := range held {
			if !w.give(watch.Added, r) {
				return false
			}
		}
		held, w.cursor = nil, max(w.cursor, c.Revision)
	}
	return true
}

// cross delivers the objects of a cluster that enters, as of the revision of the change, or
// that leaves, as of the revision before. It returns those to deliver last. A reader that
// stops in between resumes from the revision of its last event. It must get all others then,
// so no event before the last one has the revision of the change.
func (w *customWatch) cross(c feed.SetChange) (last []*Raw, ok bool) {
	kind, at := watch.Added, c.Revision
	if !c.Enters {
		kind, at = watch.Deleted, c.Revision-1
	}
	key := w.of.multi.resource(w.ctx).Prefix() + "/" + string(c.Cluster) + "/"
	err := w.pages(key, at, func(r *Raw) (bool, error) {
		if ok, err := w.selects(r); err != nil || !ok {
			return err == nil, err
		}
		if !c.Enters {
			r.ResourceVersion = w.of.multi.store.epoch.Of(at)
		} else if r.ResourceVersion == w.of.multi.store.epoch.Of(c.Revision) {
			last = append(last, r)
			return true, nil
		}
		return w.give(kind, r), nil
	})
	if err != nil && !errors.Is(err, errStopped) {
		w.fail(err)
	}
	return last, err == nil
}

// errStopped ends pages.
var errStopped = errors.New("the reader has stopped")

// pages calls each for the objects of a range as of a revision, until it returns false.
func (w *customWatch) pages(key string, at int64, each func(*Raw) (bool, error)) error {
	o := storage.ListOptions{
		ResourceVersion: w.of.multi.store.epoch.Of(at), ResourceVersionMatch: metav1.ResourceVersionMatchExact, Recursive: true, Predicate: storage.Everything,
	}
	done := paged(w.ctx)
	for {
		var page RawList
		o.Predicate.Limit = replayPage
		if err := w.of.cold.GetList(w.ctx, key, o, &page); err != nil {
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
