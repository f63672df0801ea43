package server_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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

// A watch as another user ends when the requestor loses the right to impersonate them. Others go on.
func TestWatchesEndWithImpersonation(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	ctx := t.Context()
	bob := c.person("bob")
	c.bind("bob", "cluster-admin", bob.subject())
	c.clusterRole("be-bob", rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{bob.info.Name}})
	as := func(account string) watch.Interface {
		config := c.withToken(c.account(account))
		config.Impersonate.UserName = bob.info.Name
		c.bind(account, "be-bob", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: account})
		w := must(must(kubernetes.NewForConfig(config))(t).CoreV1().Secrets("default").Watch(ctx, metav1.ListOptions{}))(t)
		t.Cleanup(w.Stop)
		return w
	}
	kept, revoked, deleted := as("kept"), as("revoked"), as("deleted")
	if err := c.kube.RbacV1().ClusterRoleBindings().Delete(ctx, "revoked", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended(t, "the right to impersonate is removed", revoked)
	if err := c.kube.CoreV1().ServiceAccounts("default").Delete(ctx, "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ended(t, "the requestor is deleted", deleted)
	must(c.kube.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}))(t)
	for e := range kept.ResultChan() {
		if o, ok := e.Object.(*corev1.Secret); ok && o.Name == "new" {
			return
		}
	}
	t.Error("a watch of a requestor with all rights has ended")
}
