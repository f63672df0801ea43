package server_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/server"
)

// The types that the server needs to create workspaces cannot be deleted, neither singly nor
// in a collection. Types of these names in other clusters can.
func TestNeededTypesStay(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	root := must(dynamic.NewForConfig(c.server.InProcess("root", server.System())))(t).Resource(workspaceTypes)
	for _, name := range []string{"universal", "root", "home"} {
		err := root.Delete(t.Context(), name, metav1.DeleteOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the workspace type "+name+" may not be deleted") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := root.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=universal"}); !apierrors.IsForbidden(err) {
		t.Errorf("universal in a collection: %v", err)
	}
	c.makeWorkspace(workspace("still-possible"))
	c.defineType("universal", "{}")
	if err := c.any.Resource(workspaceTypes).Delete(t.Context(), "universal", metav1.DeleteOptions{}); err != nil {
		t.Errorf("a type named universal elsewhere: %v", err)
	}
}

// The secret with the identity of the workspaces API cannot be deleted or changed.
func TestIdentityStays(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	kube := must(kubernetes.NewForConfig(c.server.InProcess("root", server.System())))(t)
	secrets := kube.CoreV1().Secrets("kcp-system")
	for what, err := range map[string]error{
		"namespace":  kube.CoreV1().Namespaces().Delete(t.Context(), "kcp-system", metav1.DeleteOptions{}),
		"secret":     secrets.Delete(t.Context(), "tenancy.kcp.io", metav1.DeleteOptions{}),
		"collection": secrets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "workspaces are stored under") {
			t.Errorf("deletion of the %s: %v", what, err)
		}
	}
	patch := func(p string) error {
		_, err := secrets.Patch(t.Context(), "tenancy.kcp.io", types.MergePatchType, []byte(p), metav1.PatchOptions{})
		return err
	}
	if err := patch(`{"data":{"key":"eA=="}}`); !apierrors.IsForbidden(err) {
		t.Errorf("another key: %v", err)
	}
	if err := patch(`{"data":null}`); !apierrors.IsForbidden(err) {
		t.Errorf("no key: %v", err)
	}
	if err := patch(`{"metadata":{"labels":{"a":"b"}}}`); err != nil {
		t.Errorf("a label: %v", err)
	}
	// Secrets of that name in other clusters can.
	c.namespace("kcp-system")
	elsewhere := c.kube.CoreV1().Secrets("kcp-system")
	must(elsewhere.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tenancy.kcp.io"}}, metav1.CreateOptions{}))(t)
	if err := elsewhere.Delete(t.Context(), "tenancy.kcp.io", metav1.DeleteOptions{}); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
}
