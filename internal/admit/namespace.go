package admit

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// Namespaces looks up namespaces.
type Namespaces struct {
	// Get returns the deletion time of a namespace, nil if it is not being deleted, and
	// whether it exists.
	Get func(c cluster.Name, name string) (deleted *metav1.Time, exists bool)
	// Fresh waits until the data of Get is as new as any that this process has seen, and
	// reports whether it waited.
	Fresh func(context.Context) bool
	// Ending reports whether the cluster is being deleted. The namespaces of every cluster
	// may be deleted then.
	Ending func(context.Context, cluster.Name) bool
}

// Lifecycle refuses to create objects in namespaces that do not exist or are being deleted.
// It also refuses to delete the namespaces of every cluster.
func (n Namespaces) Lifecycle() Rule {
	return Rule{Name: "WorkspaceNamespaceLifecycle", Validate: func(ctx context.Context, r Request) error {
		if r.GetOperation() == admission.Delete {
			if r.Is(namespaces) && immortal(r.GetName()) && !n.Ending(ctx, r.Cluster) {
				return r.Forbid(errors.New("this namespace may not be deleted"))
			}
			return nil
		}
		// Reviews ask about a namespace without needing it to be there.
		if r.GetNamespace() == "" || r.Is(namespaces) || r.GetOperation() != admission.Create || isReview(r.GetResource().GroupResource()) {
			return nil
		}
		err := n.refuse(r)
		if err != nil && n.Fresh(ctx) {
			err = n.refuse(r)
		}
		return err
	}}
}

// immortal reports whether a namespace exists as long as its cluster.
func immortal(name string) bool {
	return name == metav1.NamespaceDefault || name == metav1.NamespaceSystem
}

func isReview(gr schema.GroupResource) bool {
	return gr == schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
}

func (n Namespaces) refuse(r Request) error {
	deleted, exists := n.Get(r.Cluster, r.GetNamespace())
	if !exists {
		return apierrors.NewNotFound(namespaces, r.GetNamespace())
	}
	if deleted == nil {
		return nil
	}
	return store.NamespaceTerminating(r.Forbid, r.GetNamespace(), *deleted)
}
