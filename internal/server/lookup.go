package server

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// serviceAccount and secret read what a token is verified against, in the cluster
// of the context and as it is now: a token must end with its account.

func (s *Server) serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return lookUp[corev1.ServiceAccount](ctx, s.store, schema.GroupResource{Resource: "serviceaccounts"}, namespace, name)
}

func (s *Server) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return lookUp[corev1.Secret](ctx, s.store, schema.GroupResource{Resource: "secrets"}, namespace, name)
}

func lookUp[T any](ctx context.Context, s *store.Store, gr schema.GroupResource, namespace, name string) (*T, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	o, _, err := s.Read(ctx, store.Key{Resource: store.NativeResource(gr), Cluster: c, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, apierrors.NewNotFound(gr, name)
	}
	return converted[T](o)
}

// patchSecret records in a secret that the token in it is in use.
func (s *Server) patchSecret(ctx context.Context, namespace, name string, patch []byte) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(s.InProcess(string(c), System()))
	if err != nil {
		return err
	}
	_, err = clients.CoreV1().Secrets(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
