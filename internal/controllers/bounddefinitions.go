package controllers

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// BoundDefinitions deletes the definitions of schemas that no binding uses and that are deleted.
func BoundDefinitions(d Deps) control.Loop {
	inbox := newInbox(func() []control.Key { return loopKeys(d.Definitions.AllBound()) })
	d.APIs.OnUnused(func(uid string) { inbox.put(control.Key{Cluster: cluster.BoundDefinitions, Name: uid}) })
	return control.Loop{
		Name: "bound-definitions",
		On:   d.on(inbox.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return ignore(d.APIs.Collect(ctx, k.Name), apierrors.IsNotFound, apierrors.IsConflict, storage.IsConflict)
		},
	}
}
