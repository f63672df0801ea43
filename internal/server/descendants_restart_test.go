package server_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/unforked/kcp/internal/server"
)

// Bindings for descendants still apply after a restart, and end when they are deleted.
func TestDescendantsAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := operate(t, dir, server.DefaultOperation())
	s.workspace(t, "org")
	alice := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}
	if _, err := s.client(t, "root", "").RbacV1().ClusterRoleBindings().Create(t.Context(), binding("alice", "view", below(), alice), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lists := func() error {
		_, err := s.client(t, "root:org", "alices-token").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := lists(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = operate(t, dir, server.DefaultOperation())
	if err := lists(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := s.client(t, "root", "").RbacV1().ClusterRoleBindings().Delete(t.Context(), "alice", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Store().Feed().Fresh(t.Context())
	if err := lists(); !apierrors.IsForbidden(err) {
		t.Errorf("after its end: %v", err)
	}
}
