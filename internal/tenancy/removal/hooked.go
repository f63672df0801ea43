package removal

import (
	"context"
	"errors"
	"fmt"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

var errRefused = errors.New("webhooks and policies are asked again")

// hooked reports whether webhooks or policies have to allow the deletion of an object. They have
// if the deletion has begun. A forced deletion does not ask them.
func (c *clearing) hooked(item store.Item) bool {
	if c.forced || c.Hooked == nil || item.Metadata.Deleting || item.Resource.Root == keys.System || item.Resource.Group == admissionregistrationv1.GroupName {
		return false
	}
	return c.Hooked(c.cluster, item.GroupResource())
}

// ask deletes objects through the API, where webhooks and policies see the requests. Refused
// deletions block that of the cluster.
func (c *clearing) ask(ctx context.Context, asked []store.Item) error {
	var mu sync.Mutex
	return each(asked, func(item store.Item) error {
		err := c.delete(ctx, item)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.IsNotFound(err): // or not served; either way no hook sees it
			c.doomed = append(c.doomed, item.Bare())
		case err == nil, apierrors.IsConflict(err):
			c.left.more = true
		default:
			c.left.block(tree.SomeDeletionsRefused, fmt.Sprintf("%s %s cannot be deleted: %v", item.GroupResource(), named(item), err))
			c.left.failed = errRefused // to try again: no event may follow when they allow it
		}
		return ctx.Err()
	})
}
