package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/feed"
)

// BoundDefinitions deletes the definitions of schemas that no binding uses and that are deleted.
func BoundDefinitions(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return trigger.Keys(d.Definitions.AllBound()) })
	d.Store.Feed().Follow(unusedBefore{inbox})
	d.APIs.OnUnused(func(uid string) { inbox.Put(control.Key{Cluster: cluster.BoundDefinitions, Name: uid}) })
	return control.Loop{
		Name: "bound-definitions",
		On:   d.on(inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(d.APIs.Collect(ctx, k.Name))
		},
	}
}

// unusedBefore checks all definitions after the start: the server may have ended between the last
// use of a schema and the deletion of its definition. It is a follower of the change feed.
type unusedBefore struct{ *trigger.Inbox }

// Apply implements [feed.Follower].
func (unusedBefore) Apply(feed.Event) {}
