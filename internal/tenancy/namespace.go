package tenancy

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	// attempts limits the retries after concurrent writes in a namespace.
	attempts = 4
)

// IsNamespaceContent reports whether k is the key of an object that every namespace has.
func IsNamespaceContent(k keys.Key) bool {
	return k.Resource == native("", "serviceaccounts") && k.Name == defaultAccount ||
		k.Resource == native("", "configmaps") && k.Name == RootCAConfigMap
}

// IsIntact reports whether a stored object is as [Workspaces.FillNamespace] writes it. It
// returns false if the object cannot be read.
func (w *Workspaces) IsIntact(o runtime.Object) bool {
	m, err := Native[corev1.ConfigMap](o)
	return err == nil && w.intact(m)
}

func (w *Workspaces) intact(m *corev1.ConfigMap) bool {
	return len(m.Data) == 1 && m.Data[RootCAKey] == w.RootCA.Text()
}

// FillNamespace creates the objects that every namespace has and this one lacks, and
// resets those that were changed. It does nothing in a namespace that is being deleted.
func (w *Workspaces) FillNamespace(ctx context.Context, c cluster.Name, namespace string) error {
	for range attempts {
		state, err := w.Store.State(ctx, c)
		if err != nil || state == store.Gone || state == store.Terminating {
			return err
		}
		writes, err := w.lacking(ctx, c, namespace)
		if err != nil || len(writes) == 0 {
			return err
		}
		_, err = w.Store.Commit(ctx, writes)
		if err == nil || store.IsNamespaceEnded(err) {
			return nil
		}
		if !storage.IsExist(err) && !storage.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("fill namespace %s: %w", namespace, err)
		}
	}
	return fmt.Errorf("fill namespace %s: too many concurrent changes", namespace)
}

// lacking returns the writes that create or reset the objects that every namespace has.
func (w *Workspaces) lacking(ctx context.Context, c cluster.Name, namespace string) ([]store.Write, error) {
	b := w.birth(c, metav1.Now())
	var writes []store.Write
	account, _, err := w.Store.Read(ctx, keys.Key{Resource: native("", "serviceaccounts"), Cluster: c, Namespace: namespace, Name: defaultAccount})
	if err != nil {
		return nil, err
	}
	if account == nil {
		writes = append(writes, b.write(native("", "serviceaccounts"), b.account(namespace)))
	}
	stored, rev, err := w.Store.Read(ctx, keys.Key{Resource: native("", "configmaps"), Cluster: c, Namespace: namespace, Name: RootCAConfigMap})
	fresh := b.rootCAMap(namespace)
	switch {
	case err != nil && (rev == 0 || !values.IsCorrupt(err)):
		return nil, err
	case stored == nil: // missing or corrupt
		return append(writes, store.Write{Resource: native("", "configmaps"), Cluster: c, Object: fresh, Expect: rev}), nil
	}
	m, err := Native[corev1.ConfigMap](stored)
	if err != nil || w.intact(m) {
		return writes, err
	}
	m.Data = fresh.Data
	delete(m.BinaryData, RootCAKey)
	m.ResourceVersion = ""
	return append(writes, store.Write{Resource: native("", "configmaps"), Cluster: c, Object: m, Expect: rev}), nil
}

// Native returns a stored native object in the version T.
func Native[T any](o runtime.Object) (*T, error) {
	if t, ok := any(o).(*T); ok {
		return t, nil
	}
	t := new(T)
	return t, legacyscheme.Scheme.Convert(o, t, nil)
}
