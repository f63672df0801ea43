package watches

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
)

// memberKey returns the range of the objects of a cluster.
func memberKey(ctx context.Context, s Source, c cluster.Name) string {
	return s.Resource(ctx).Prefix() + "/" + string(c) + "/"
}

// snapshot returns the revision as of which a list in a sparse scope reads.
func snapshot(ctx context.Context, s *store.Store, o storage.ListOptions) (int64, error) {
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return s.Epoch().Revision(o.ResourceVersion)
	}
	return s.Newest(ctx)
}

// members calls each for the objects of all members of a sparse scope as of a revision, until it
// returns false. It reads each member, or all clusters if others have few objects.
func (all *Watches) members(ctx context.Context, s Source, scope *registry.Scope, rev int64, each func(*Raw) (bool, error)) error {
	if err := all.store.Feed().Await(ctx, rev); err != nil {
		return err
	}
	clusters, ok := scope.Members(rev)
	if !ok {
		return expired(rev)
	}
	if dense(all.store.Feed().Ledger(), s.Resource(ctx), clusters) {
		return all.pages(ctx, s, s.Resource(ctx).Prefix()+"/", rev, func(r *Raw) (bool, error) {
			p, is := readable(scope, cluster.Of(r), rev)
			if !is || !p.Has(r.Labels) {
				return true, nil
			}
			return each(r)
		})
	}
	for _, c := range clusters {
		p, is := readable(scope, c, rev)
		if !is {
			continue
		}
		err := all.pages(ctx, s, memberKey(ctx, s, c), rev, func(r *Raw) (bool, error) {
			if !p.Has(r.Labels) {
				return true, nil
			}
			return each(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// memberRead is how many bytes of other clusters can be read in the time of one more read of etcd.
const memberRead = 8 << 10

// dense reports whether it is faster to read a resource in all clusters than in each member.
func dense(l *feed.Ledger, r keys.Resource, members []cluster.Name) bool {
	var of int64
	for _, c := range members {
		of += l.Usage(c, r).Bytes
	}
	return l.Bytes(r) <= of+memberRead*int64(len(members))
}

// List returns the objects that a list in a sparse scope selects, and their revision.
func (all *Watches) List(ctx context.Context, s Source, scope *registry.Scope, o storage.ListOptions) (*RawList, error) {
	rev, err := snapshot(ctx, all.store, o)
	if err != nil {
		return nil, err
	}
	list := &RawList{}
	list.ResourceVersion = all.store.ResourceVersion(rev)
	err = all.members(ctx, s, scope, rev, func(r *Raw) (bool, error) {
		if ok, err := s.Selects(r, o.Predicate); err != nil || !ok {
			return true, nil //nolint:nilerr // one tenant's bad value must not fail the list
		}
		list.Items = append(list.Items, *r)
		return true, fair.Grow(ctx, int64(len(r.Framed)))
	})
	return list, err
}

// replayMembers is [feedWatch.replay] in a sparse scope.
func (w *feedWatch) replayMembers() bool {
	rev, err := w.all.store.Newest(w.ctx)
	if err != nil {
		return w.fail(err)
	}
	if w.cursor = rev; !w.subscribe(rev) || !w.scopeAt(rev) {
		return false
	}
	err = w.all.members(w.ctx, w.Source, w.scope, rev, func(r *Raw) (bool, error) {
		if ok, err := w.Selects(r, w.options.Predicate); err != nil || !ok {
			return true, nil //nolint:nilerr // one tenant's bad value must not end the watch
		}
		return w.deliverEvent(watch.Added, r), nil
	})
	switch {
	case errors.Is(err, errStopped):
		return false
	case err != nil:
		return w.fail(err)
	}
	return w.replayed()
}
