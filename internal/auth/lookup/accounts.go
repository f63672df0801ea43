package lookup

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// ServiceAccount reads a service account from etcd, in the cluster of ctx. A cache could accept
// tokens of deleted accounts.
func ServiceAccount(ctx context.Context, s *store.Store, namespace, name string) (*corev1.ServiceAccount, error) {
	return lookUp[corev1.ServiceAccount](ctx, s, schema.GroupResource{Resource: "serviceaccounts"}, namespace, name)
}

// Secret reads a secret from etcd, in the cluster of ctx.
func Secret(ctx context.Context, s *store.Store, namespace, name string) (*corev1.Secret, error) {
	return lookUp[corev1.Secret](ctx, s, schema.GroupResource{Resource: "secrets"}, namespace, name)
}

func lookUp[T any](ctx context.Context, s *store.Store, gr schema.GroupResource, namespace, name string) (*T, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	o, _, err := s.Read(ctx, keys.Key{Resource: keys.NativeResource(gr), Cluster: c, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, apierrors.NewNotFound(gr, name)
	}
	return converted[T](o)
}
