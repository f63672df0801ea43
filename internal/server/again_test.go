package server_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// watching opens a watch with a token.
func (c *tenant) watching(token string) watch.Interface {
	c.t.Helper()
	config := c.withToken(token)
	client := must(kubernetes.NewForConfig(config))(c.t)
	w := must(client.CoreV1().ConfigMaps("default").Watch(c.t.Context(), metav1.ListOptions{}))(c.t)
	c.t.Cleanup(w.Stop)
	return w
}

// A watch ends when its user loses the rights to it or their credentials. Others go on.
func TestWatchesEndWithTheRights(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	ctx := t.Context()
	kept, revoked, deleted := c.watching(c.account("kept")), c.watching(c.account("revoked")), c.watching(c.account("deleted"))
	if err := c.kube.RbacV1().RoleBindings("default").Delete(ctx, "revoked", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended(t, "the rights are removed", revoked)
	if err := c.kube.CoreV1().ServiceAccounts("default").Delete(ctx, "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended(t, "the service account is deleted", deleted)
	must(c.kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}))(t)
	for e := range kept.ResultChan() {
		if o, ok := e.Object.(*corev1.ConfigMap); ok && o.Name == "new" {
			return
		}
	}
	t.Error("a watch of a user with all rights has ended")
}
