package admit

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/cluster"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// Namespaces tells what is known about namespaces.
type Namespaces struct {
	// Get returns when the namespace began to be deleted, nil if it did not, and
	// whether it exists.
	Get func(c cluster.Name, name string) (deleted *metav1.Time, exists bool)
	// Fresh waits until what Get says is as new as anything this process has seen,
	// and reports whether it is.
	Fresh func(context.Context) bool
	// Ending reports whether the whole cluster is being deleted, and with it the
	// namespaces that otherwise stay.
	Ending func(context.Context, cluster.Name) bool
}

// Lifecycle keeps objects from being created in namespaces that do not exist or
// are being deleted, and the namespaces that every cluster has from being deleted.
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

// immortal reports whether a namespace lasts as long as its cluster.
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
	err := r.Forbid(fmt.Errorf("unable to create new content in namespace %s because it is being terminated", r.GetNamespace()))
	var status *apierrors.StatusError
	if errors.As(err, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace",
			Message: fmt.Sprintf("namespace %s is being terminated since %s", r.GetNamespace(), deleted.Format(time.RFC3339)),
		})
	}
	return err
}
