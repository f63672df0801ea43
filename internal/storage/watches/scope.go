package watches

import (
	"context"
	"errors"
	"math"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
)

// Scoped removes, from the items of a list at a revision, those of clusters that were not in
// the scope of the request then, or are not now.
func Scoped[T any](ctx context.Context, s *store.Store, resourceVersion string, items []T, of func(*T) cluster.Name) ([]T, error) {
	scope := registry.ScopeOf(ctx)
	if scope == nil {
		return items, nil
	}
	rev, err := s.Epoch().Revision(resourceVersion)
	if err != nil {
		return nil, err
	}
	if err := s.Feed().Await(ctx, rev); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(items, func(item T) bool {
		_, is := readable(scope, of(&item), rev)
		return !is
	}), nil
}

// parts are parts of a cluster's objects that all select an object.
type parts [2]membership.Part

// Has reports whether the parts have an object with some labels.
func (p parts) Has(of labels.Set) bool { return p[0].Has(of) && p[1].Has(of) }

// readable returns the parts of a cluster's objects that a list in a scope at a revision may
// contain: the part that the scope had at that revision, and the part that it has now. An object
// must be in both. A reader who has lost the right to read a cluster must not read its past either.
func readable(scope *registry.Scope, c cluster.Name, rev int64) (parts, bool) {
	then, was := scope.At(c, rev)
	now, is := scope.At(c, math.MaxInt64)
	return parts{then, now}, was && is
}

// covers returns the part of a cluster's objects that the watch covered at a revision that it
// has reached, and whether it covered the cluster.
func (w *feedWatch) covers(c cluster.Name, at int64) (membership.Part, bool) {
	if w.scope == nil {
		return membership.Part{}, true
	}
	return w.scope.At(c, at)
}

// partAt returns the part of a cluster's objects that the watch covers at a revision. It
// reports false if the watch did not cover the same part before.
func (w *feedWatch) partAt(c cluster.Name, rev int64) (membership.Part, bool) {
	then, is := w.covers(c, rev)
	before, was := w.covers(c, rev-1)
	return then, is && was && then.Equal(before)
}

// stillCovers reports whether a watch within a sparse scope still covers a part of a cluster's
// objects. If the cluster has left the scope, the reader may have lost the right to see its
// objects. It then gets only the names of those that disappear. Without a sparse scope, stillCovers
// returns true.
func (w *feedWatch) stillCovers(c cluster.Name, p membership.Part) bool {
	if w.scope == nil || !w.scope.Sparse {
		return true
	}
	now, is := w.scope.At(c, math.MaxInt64)
	return is && now.Equal(p)
}

// scopeAt begins to follow the scope after a revision.
func (w *feedWatch) scopeAt(rev int64) bool {
	if w.scope == nil {
		return true
	}
	if err := w.feed().Await(w.ctx, rev); err != nil { // rev may be that of a key outside of the feed
		return w.fail(err)
	}
	w.members = w.scope.After(rev)
	return true
}

// scopeChanged returns a channel that is closed when the scope changes, nil for none.
func (w *feedWatch) scopeChanged() <-chan struct{} {
	if w.scope == nil {
		return nil
	}
	return w.scope.Changed()
}

// upToDate delivers the changes of objects and of the scope up to the applied revision.
func (w *feedWatch) upToDate() bool {
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
func (w *feedWatch) rescope(rev int64) bool {
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
		if w.requests != nil && c.Revision-1 > w.bookmarked && !w.bookmark(c.Revision-1, nil) {
			return false // the objects that follow may have much older revisions
		}
		last, ok := w.cross(c)
		if !ok {
			return false
		}
		held = append(held, last...)
		if i+1 < len(changes) && changes[i+1].Revision == c.Revision {
			continue
		}
		for _, r := range held {
			if !w.deliverEvent(watch.Added, r) {
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
func (w *feedWatch) cross(c membership.Change) (last []*Raw, ok bool) {
	kind, at := watch.Added, c.Revision
	if !c.Enters {
		kind, at = watch.Deleted, c.Revision-1
	}
	if c.Enters && !w.stillCovers(c.Cluster, c.Part) {
		return nil, true
	}
	key := memberKey(w.ctx, w.Source, c.Cluster)
	err := w.all.pages(w.ctx, w.Source, key, at, func(r *Raw) (bool, error) {
		if ok, err := w.selected(r, c.Part); err != nil || !ok {
			return err == nil, err
		}
		if !c.Enters {
			if w.scope.Sparse {
				r = nameOf(r)
			}
			r.ResourceVersion = w.all.store.ResourceVersion(at)
		} else if r.ResourceVersion == w.all.store.ResourceVersion(c.Revision) {
			last = append(last, r)
			return true, nil
		}
		return w.deliverEvent(kind, r), nil
	})
	if err != nil && !errors.Is(err, errStopped) {
		w.fail(err)
	}
	return last, err == nil
}

// nameOf returns a raw with nothing but the name of another.
func nameOf(r *Raw) *Raw {
	return &Raw{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, Annotations: r.Annotations, ResourceVersion: r.ResourceVersion}}
}
