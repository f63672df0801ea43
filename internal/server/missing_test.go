package server_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/server"
)

// Administrators, too, get 404 in a logical cluster that does not exist.
func TestListsOfMissingClusters(t *testing.T) {
	s := sharedServer(t)
	c, err := kubernetes.NewForConfig(s.InProcess("2x7hgqiqg09g1wzp", server.System()))
	if err != nil {
		t.Fatal(err)
	}
	if list, err := c.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a list: %v, %v", list.Items, err)
	}
	if _, err := c.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a list of roles: %v", err)
	}
	if _, err := c.CoreV1().Secrets("default").Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a watch: %v", err)
	}
}
