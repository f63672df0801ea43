package admit

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
)

// inactivity are the annotations that take a logical cluster offline.
var inactivity = []string{core.InactiveAnnotation, core.LegacyInactiveAnnotation}

func inactiveAnywhere(o metav1.Object) bool {
	return o != nil && slices.ContainsFunc(inactivity, func(key string) bool { return o.GetAnnotations()[key] == "true" })
}

// operator reports whether the request comes from somebody who runs the server, and not
// from a tenant: only those take clusters offline, and bring them back.
func (r Request) operator() bool {
	u := r.GetUserInfo()
	return u != nil && slices.ContainsFunc(u.GetGroups(), func(g string) bool {
		return g == auth.AdminGroup || g == auth.LogicalClusterAdminGroup || g == auth.ExternalLogicalClusterAdminGroup
	})
}

// onlyInactivity reports whether an update changes nothing but whether a cluster is
// offline.
func onlyInactivity(r Request) bool {
	old, ok := r.GetOldObject().(*unstructured.Unstructured)
	now, ok2 := r.GetObject().(*unstructured.Unstructured)
	if !ok || !ok2 || r.GetSubresource() != "" {
		return false
	}
	return equality.Semantic.DeepEqual(withoutInactivity(old), withoutInactivity(now))
}

func withoutInactivity(u *unstructured.Unstructured) map[string]any {
	rest := u.DeepCopy()
	annotations := rest.GetAnnotations()
	for _, key := range inactivity {
		delete(annotations, key)
	}
	rest.SetAnnotations(annotations)
	rest.SetManagedFields(nil)
	rest.SetGeneration(0)
	rest.SetResourceVersion("")
	return rest.Object
}
