// Package deletion deletes the content of workspaces, namespaces, definitions and bindings that are
// being deleted, and then these. It hides which objects are deleted in the store and which through
// the API, in which order, and when a blocked deletion is tried again.
package deletion

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
)

// slow is the maximum of slow keys of each loop: they wait for webhooks of tenants, or delete many objects.
const slow = 12

// remove deletes a stored object through the API, with admission and validation.
func remove(ctx context.Context, client func(cluster.Name) *rest.Config, r schema.GroupVersionResource, item store.Item) error {
	c, err := metadata.NewForConfig(client(item.Cluster))
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	return c.Resource(r).Namespace(item.Namespace).Delete(ctx, item.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &item.Metadata.UID}, PropagationPolicy: &background,
	})
}
