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
	"github.com/unforked/kcp/internal/store"
)

const (
	// attempts bounds how often what a namespace lacks is looked up again because
	// somebody else has written it.
	attempts = 4
)

// IsNamespaceContent reports whether an object of that resource and name is one
// that every namespace has.
func IsNamespaceContent(k store.Key) bool {
	return k.Resource == native("", "serviceaccounts") && k.Name == defaultAccount ||
		k.Resource == native("", "configmaps") && k.Name == RootCAConfigMap
}

// IsIntact reports whether a stored object is as [Workspaces.FillNamespace] leaves
// it. It is not if it cannot be read.
func (w *Workspaces) IsIntact(o runtime.Object) bool {
	m, err := as[corev1.ConfigMap](o)
	return err == nil && w.intact(m)
}

func (w *Workspaces) intact(m *corev1.ConfigMap) bool {
	return len(m.Data) == 1 && m.Data[RootCAKey] == w.RootCA
}

// FillNamespace makes what a namespace lacks of what every namespace has, and sets
// back what was changed of it. The namespace was seen to be there; should it be on
// its way out by now, nothing is left in it.
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
		rev, err := w.Store.Commit(ctx, writes)
		if err == nil {
			return w.emptyIfEnding(ctx, c, namespace, writes, rev)
		}
		if !storage.IsExist(err) && !storage.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("fill namespace %s: %w", namespace, err)
		}
	}
	return fmt.Errorf("fill namespace %s: what it has keeps changing", namespace)
}

// lacking returns the writes that a namespace needs to have what every one has.
func (w *Workspaces) lacking(ctx context.Context, c cluster.Name, namespace string) ([]store.Write, error) {
	b := w.birth(c, metav1.Now())
	var writes []store.Write
	account, _, err := w.Store.Read(ctx, store.Key{Resource: native("", "serviceaccounts"), Cluster: c, Namespace: namespace, Name: defaultAccount})
	if err != nil {
		return nil, err
	}
	if account == nil {
		writes = append(writes, b.write(native("", "serviceaccounts"), b.account(namespace)))
	}
	stored, rev, err := w.Store.Read(ctx, store.Key{Resource: native("", "configmaps"), Cluster: c, Namespace: namespace, Name: RootCAConfigMap})
	fresh := b.rootCAMap(namespace)
	switch {
	case rev == 0 && err != nil:
		return nil, err
	case stored == nil: // not there, or nothing that can be read
		return append(writes, store.Write{Resource: native("", "configmaps"), Cluster: c, Object: fresh, Expect: rev}), nil
	}
	m, err := as[corev1.ConfigMap](stored)
	if err != nil || w.intact(m) {
		return writes, err
	}
	m.Data = fresh.Data
	delete(m.BinaryData, RootCAKey)
	m.ResourceVersion = ""
	return append(writes, store.Write{Resource: native("", "configmaps"), Cluster: c, Object: m, Expect: rev}), nil
}

// emptyIfEnding takes back what was created at revision rev if the namespace was on
// its way out by then: whoever empties it may have looked before.
func (w *Workspaces) emptyIfEnding(ctx context.Context, c cluster.Name, namespace string, writes []store.Write, rev int64) error {
	stored, _, err := w.Store.Read(ctx, store.Key{Resource: native("", "namespaces"), Cluster: c, Name: namespace})
	if err != nil {
		return err
	}
	if stored != nil {
		ns, err := as[corev1.Namespace](stored)
		if err != nil || ns.DeletionTimestamp == nil {
			return err
		}
	}
	for _, created := range writes {
		if created.Expect != 0 {
			continue
		}
		created.Expect, created.Delete = rev, true
		_, err := w.Store.Commit(ctx, []store.Write{created})
		if err != nil && !apierrors.IsNotFound(err) && !storage.IsConflict(err) {
			return err
		}
	}
	return nil
}

// as returns a stored native object in the version T.
func as[T any](o runtime.Object) (*T, error) {
	if t, ok := any(o).(*T); ok {
		return t, nil
	}
	t := new(T)
	return t, legacyscheme.Scheme.Convert(o, t, nil)
}
