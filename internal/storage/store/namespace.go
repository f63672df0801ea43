package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

func namespaces() keys.Resource { return keys.Resource{Root: keys.Native, Resource: "namespaces"} }

func namespaceKey(c cluster.Name, name string) keys.Key {
	return keys.Key{Resource: namespaces(), Cluster: c, Name: name}
}

// A Namespace is the state of a namespace that decides whether objects can be created in
// it.
type Namespace struct {
	// Revision is the mod revision of the namespace.
	Revision int64
	// Deleted is the deletion timestamp of the namespace, or nil.
	Deleted *metav1.Time
}

// GuardNamespaces returns the table of all namespaces. From now on, every transaction that
// creates an object in a namespace compares the revision of the namespace: after its
// deletion has begun, no process can create anything in it, however late a write arrives.
//
// It must be called before the feed starts.
func (s *Store) GuardNamespaces() *feed.Table[Namespace] {
	t := feed.NewEventTable(s.feed, namespaces(), func(e feed.Event) (Namespace, error) {
		o, err := e.Object(context.Background())
		if err != nil {
			return Namespace{}, err
		}
		return namespaceOf(o, e.Revision)
	})
	s.guard.namespaces = &namespaceGuard{store: s, known: t}
	return t
}

func namespaceOf(o runtime.Object, revision int64) (Namespace, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return Namespace{}, err
	}
	return Namespace{Revision: revision, Deleted: m.GetDeletionTimestamp()}, nil
}

// namespaceGuard makes creations depend on their namespaces.
type namespaceGuard struct {
	store *Store
	known *feed.Table[Namespace] // may be older than etcd
}

// condition returns the condition of the creation of an object at k, or an error if its
// namespace forbids it. The condition is nil if k has no namespace.
func (g *namespaceGuard) condition(ctx context.Context, k keys.Key) (*Condition, error) {
	if g == nil || k.Namespace == "" {
		return nil, nil
	}
	c := &Condition{Of: k.Resource, On: namespaceKey(k.Cluster, k.Namespace)}
	c.Renew = func(ctx context.Context, _ int64) (int64, error) { return g.read(ctx, k) }
	if n, ok := g.known.Get(k.Cluster, "", k.Namespace); ok && n.Deleted == nil {
		c.Revision = n.Revision
		return c, nil
	}
	var err error
	c.Revision, err = g.read(ctx, k)
	return c, err
}

// read returns the revision of the namespace of k from etcd, or an error if the namespace
// forbids creations.
func (g *namespaceGuard) read(ctx context.Context, k keys.Key) (int64, error) {
	o, revision, err := g.store.Read(ctx, namespaceKey(k.Cluster, k.Namespace))
	if err != nil {
		return 0, err
	}
	if o == nil {
		return 0, apierrors.NewNotFound(namespaces().GroupResource(), k.Namespace)
	}
	n, err := namespaceOf(o, revision)
	if err == nil && n.Deleted != nil {
		forbid := func(why error) error { return apierrors.NewForbidden(k.GroupResource(), k.Name, why) }
		err = NamespaceTerminating(forbid, k.Namespace, *n.Deleted)
	}
	return revision, err
}

// NamespaceTerminating returns the error of a creation in a namespace whose deletion began
// at since. forbid makes an error with a reason; clients recognize the error by its cause.
func NamespaceTerminating(forbid func(error) error, namespace string, since metav1.Time) error {
	err := forbid(fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	var status *apierrors.StatusError
	if errors.As(err, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace",
			Message: fmt.Sprintf("namespace %s is being terminated since %s", namespace, since.Format(time.RFC3339)),
		})
	}
	return err
}

// IsNamespaceEnded reports whether err is that of a creation in a namespace that is being
// deleted or does not exist.
func IsNamespaceEnded(err error) bool {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return true
	}
	var status *apierrors.StatusError
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.ErrStatus.Details != nil && status.ErrStatus.Details.Kind == namespaces().Resource
}
