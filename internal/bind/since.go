package bind

import (
	"context"

	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

func newExports(f *feed.Feed) *feed.Table[*Export] {
	return newSince(f, ExportResource(), exportOf, func(now, before *Export, at int64) {
		if now.Since = at; before != nil && now.published(before) {
			now.Since = before.Since
		}
	})
}

func newCachedSlices(f *feed.Feed, r keys.Resource) *feed.Table[*Slice] {
	return newSince(f, r, cachedSliceOf, func(now, before *Slice, at int64) {
		if now.Since = at; before != nil && now.like(before) {
			now.Since = before.Since
		}
	})
}

// newSince returns a table whose rows have the revision of their last relevant change. A write of
// the status, for example, is not relevant. set sets that revision in a new row. It gets the row
// before the change, nil if there was none, and the revision of the change. After a rebuild of the
// feed, rows have the revision of their objects, which may be later.
func newSince[T, O any](f *feed.Feed, r keys.Resource, convert func(*O) (*T, error), set func(now, before *T, at int64)) *feed.Table[*T] {
	var t *feed.Table[*T]
	t = feed.NewEventTable(f, r, func(e feed.Event) (*T, error) {
		o := new(O)
		if err := e.Unmarshal(context.Background(), o); err != nil {
			return nil, err
		}
		now, err := convert(o)
		if err != nil {
			return nil, err
		}
		var before *T
		if e.Previous != nil {
			before, _ = t.Get(e.Key.Cluster, e.Key.Namespace, e.Key.Name)
		}
		set(now, before, e.Revision)
		return now, nil
	})
	return t
}
