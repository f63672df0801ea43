package server_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A huge exponent in a quantity would take a processor for hours, in whatever form it comes.
func TestHugeQuantities(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	quotas := c.kube.CoreV1().ResourceQuotas("default")
	must(quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "some"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"configmaps": resource.MustParse("5e1")}}}, metav1.CreateOptions{}))(t)
	for _, patch := range []string{`{"spec":{"hard":{"configmaps":"1e-100000"}}}`, `{"spec":{"hard":{"configmaps":"1\u0065100000"}}}`} {
		if _, err := quotas.Patch(t.Context(), "some", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", patch, err)
		}
	}
}
