package native

import (
	"maps"
	"slices"
	"sync/atomic"

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
	ca         *tenancy.RootCA
	rootCA     atomic.Pointer[map[string]string] // data with ca
	labels     map[string]map[string]string      // of a namespace, by its name
	finalizers []core.FinalizerName              // of a namespace
	words      map[string]string
	definition func(*apiextensions.CustomResourceDefinition)
}

func newSharing(ca *tenancy.RootCA, definition func(*apiextensions.CustomResourceDefinition)) *sharing {
	s := &sharing{
		definition: definition,
		ca:         ca,
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
		if o.Name == tenancy.RootCAConfigMap {
			o.Data = s.certificates(o.Data)
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

// certificates returns the shared data of config maps with the certificates of the server, if data
// is equal to it.
func (s *sharing) certificates(data map[string]string) map[string]string {
	text := s.ca.Text()
	shared := s.rootCA.Load()
	if shared == nil || (*shared)[tenancy.RootCAKey] != text {
		shared = &map[string]string{tenancy.RootCAKey: text}
		s.rootCA.Store(shared)
	}
	if maps.Equal(data, *shared) {
		return *shared
	}
	return data
}

func (s *sharing) names(m *metav1.ObjectMeta) {
	s.word(&m.Namespace)
	s.word(&m.Name)
}
