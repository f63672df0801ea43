package native

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"

	"github.com/unforked/kcp/internal/tenancy"
)

// sharing lets the objects of watch caches share values that are equal in every workspace.
// These are the server's CA certificate, the labels of default namespaces, and common RBAC
// strings. Objects in a cache are never changed.
type sharing struct {
	rootCA     map[string]string
	labels     map[string]map[string]string // of a namespace, by its name
	finalizers []core.FinalizerName         // of a namespace
	words      map[string]string
	definition func(*apiextensions.CustomResourceDefinition)
}

func newSharing(rootCA string, definition func(*apiextensions.CustomResourceDefinition)) *sharing {
	s := &sharing{
		definition: definition,
		rootCA:     map[string]string{tenancy.RootCAKey: rootCA},
		labels:     map[string]map[string]string{},
		finalizers: []core.FinalizerName{core.FinalizerKubernetes},
		words:      map[string]string{},
	}
	for _, ns := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		s.labels[ns] = map[string]string{corev1.LabelMetadataName: ns}
	}
	for _, w := range []string{
		metav1.NamespaceDefault, metav1.NamespaceSystem, tenancy.RootCAConfigMap, tenancy.AdminBinding, tenancy.ClusterAdmin,
		rbac.GroupName, rbac.UserKind, rbac.GroupKind, rbac.ServiceAccountKind, "ClusterRole", "Role",
	} {
		s.words[w] = w
	}
	return s
}

// word replaces a string by the shared copy, if there is one.
func (s *sharing) word(w *string) {
	if kept, ok := s.words[*w]; ok {
		*w = kept
	}
}

// share replaces values of o by shared ones. The caller has the only reference to o.
func (s *sharing) share(o runtime.Object) {
	switch o := o.(type) {
	case *core.ConfigMap:
		s.names(&o.ObjectMeta)
		if maps.Equal(o.Data, s.rootCA) {
			o.Data = s.rootCA
		}
	case *core.ServiceAccount:
		s.names(&o.ObjectMeta)
	case *core.Namespace:
		s.names(&o.ObjectMeta)
		if maps.Equal(o.Labels, s.labels[o.Name]) {
			o.Labels = s.labels[o.Name]
		}
		if slices.Equal(o.Spec.Finalizers, s.finalizers) {
			o.Spec.Finalizers = s.finalizers
		}
	case *apiextensions.CustomResourceDefinition:
		s.definition(o)
	case *rbac.ClusterRoleBinding:
		s.names(&o.ObjectMeta)
		for _, w := range []*string{&o.RoleRef.APIGroup, &o.RoleRef.Kind, &o.RoleRef.Name} {
			s.word(w)
		}
		for i := range o.Subjects {
			s.word(&o.Subjects[i].Kind)
			s.word(&o.Subjects[i].APIGroup)
		}
	}
}

func (s *sharing) names(m *metav1.ObjectMeta) {
	s.word(&m.Namespace)
	s.word(&m.Name)
}
