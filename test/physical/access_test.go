//go:build unix

package physical

import (
	"errors"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/client"
)

// tenantAdmin may do anything in one workspace.
func tenantAdmin() *user.DefaultInfo {
	return &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated}}
}

func dynamicFor(t testing.TB, cfg *rest.Config) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// grant makes a user administrator of the workspace.
func (s *tenant) grant(t *testing.T, name string) {
	t.Helper()
	_, err := s.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// typed returns a client for the workspace at the server that runs now.
func (s *tenant) typed(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(client.Cluster(s.config, "root:"+s.name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unwrap returns the innermost error.
func unwrap(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}
