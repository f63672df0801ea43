package tenancy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Identity returns the identity of a built-in export: the SHA-256 of a secret in the root
// workspace. The first start that has the export creates the secret.
func Identity(ctx context.Context, s *store.Store, rootCA, export string) (string, error) {
	if err := fence(ctx, s, cluster.Root); err != nil {
		return "", err
	}
	secret, err := identitySecret(ctx, s, export)
	if err != nil {
		return "", err
	}
	if secret == nil {
		if _, rev, err := s.Read(ctx, keys.Key{Resource: tree.LogicalClusters(), Cluster: cluster.Root, Name: core.LogicalClusterName}); err != nil || rev != 0 && export == Export {
			return "", errors.Join(fmt.Errorf("secret %s/%s in the root workspace is missing: restore a backup of etcd, as the workspaces are stored under the hash of the secret", ExportsNamespace, export), err)
		}
		b := birth{now: metav1.Now().Rfc3339Copy(), cluster: cluster.Root, rootCA: rootCA}
		secret = &corev1.Secret{ObjectMeta: b.meta(ExportsNamespace, export), Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{IdentityKey: []byte(rand.Text() + rand.Text())}}
		err := ensure(ctx, s, append(b.namespace(ExportsNamespace), b.write(native("", "secrets"), secret))...)
		if err != nil {
			return "", err
		}
		if secret, err = identitySecret(ctx, s, export); err != nil {
			return "", err
		}
	}
	key := secret.Data[IdentityKey]
	if len(key) == 0 {
		return "", fmt.Errorf("secret %s/%s in the root workspace has no %q: restore it from a backup, as its objects are stored under its hash", ExportsNamespace, export, IdentityKey)
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:]), nil
}

func identitySecret(ctx context.Context, s *store.Store, export string) (*corev1.Secret, error) {
	o, _, err := s.Read(ctx, keys.Key{Resource: native("", "secrets"), Cluster: cluster.Root, Namespace: ExportsNamespace, Name: export})
	if err != nil || o == nil {
		return nil, err
	}
	return Native[corev1.Secret](o)
}
