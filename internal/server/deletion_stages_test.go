package server_test

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/server"
)

// TestStagesOfADeletion expects that a finalizer in a workspace keeps objects that its removal may need: those of
// DeletedLast, Leases and exports. The deletion of these does not even begin, whether they have finalizers, whether a
// policy has to allow it, or neither.
func TestStagesOfADeletion(t *testing.T) {
	t.Parallel()
	for name, hooked := range map[string]bool{"plain": false, "with a policy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startConfigured(t, func(c *server.Config) { c.DeletedLast = []schema.GroupResource{{Resource: "resourcequotas"}} }).tenant(t)
			w := c.workspace("w")
			w.content("kept", hold)
			w.content("first")
			must(w.kube.CoreV1().ResourceQuotas("default").Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "last"}}, metav1.CreateOptions{}))(t)
			must(w.kube.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "agent"}}, metav1.CreateOptions{}))(t)
			export := decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: kept}}`)
			w.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: free}}`))
			export.SetFinalizers([]string{hold})
			w.create(apiExports, export)
			if hooked {
				w.forbids("asked", "true", func(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
					p.MatchConstraints.ResourceRules[0].RuleWithOperations = matching("*", "*", admissionregistrationv1.Delete)
				})
			}
			c.deleteWorkspace("w")
			c.says(workspaces, "w", "configmaps default/kept", hold, "1 more object")
			w.await(core("configmaps"), "default", "first", gone)
			alive := func(o *unstructured.Unstructured) bool { return o != nil && o.GetDeletionTimestamp() == nil }
			for _, e := range []string{"free", "kept"} {
				if o := must(w.any.Resource(apiExports).Get(t.Context(), e, metav1.GetOptions{}))(t); !alive(o) {
					t.Errorf("the deletion of the export %s has begun", e)
				}
			}
			must(w.kube.CoreV1().ResourceQuotas("default").Get(t.Context(), "last", metav1.GetOptions{}))(t)
			lease := must(w.kube.CoordinationV1().Leases("default").Get(t.Context(), "agent", metav1.GetOptions{}))(t)
			lease.Spec.HolderIdentity = new("agent")
			must(w.kube.CoordinationV1().Leases("default").Update(t.Context(), lease, metav1.UpdateOptions{}))(t)

			w.letGo("kept")
			w.await(apiExports, "", "kept", func(o *unstructured.Unstructured) bool { return o != nil && o.GetDeletionTimestamp() != nil })
			c.says(workspaces, "w", "apiexports.apis.kcp.io kept", hold)
			w.await(schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "default", "last", gone)
			must(w.kube.CoordinationV1().Leases("default").Get(t.Context(), "agent", metav1.GetOptions{}))(t)
			w.merge(apiExports, "", "kept", `{"metadata":{"finalizers":null}}`)
			c.ended("w", w.name)
		})
	}
}
