package server_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
)

func TestEveryNamespaceHasAnAccountAndCertificates(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.namespace("n")
	ca := string(c.server.ca)
	right := func(o *unstructured.Unstructured) bool {
		return text(o, "data", "ca.crt") == ca && text(o, "data", "more") == "<nil>"
	}
	c.await(core("serviceaccounts"), "n", "default", there)
	old := c.await(core("configmaps"), "n", "kube-root-ca.crt", right)

	maps := c.kube.CoreV1().ConfigMaps("n")
	patch := []byte(`{"data":{"ca.crt":"other","more":"x"},"immutable":true,"metadata":{"labels":{"mine":"x"}}}`)
	if _, err := maps.Patch(t.Context(), "kube-root-ca.crt", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	back := c.await(core("configmaps"), "n", "kube-root-ca.crt", right)
	if back.GetUID() != old.GetUID() || back.GetLabels()["mine"] != "x" {
		t.Errorf("set back as %v", back)
	}
	if err := maps.Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("configmaps"), "n", "kube-root-ca.crt", func(o *unstructured.Unstructured) bool { return right(o) && o.GetUID() != old.GetUID() })

	accounts := c.kube.CoreV1().ServiceAccounts("n")
	account := must(accounts.Get(t.Context(), "default", metav1.GetOptions{}))(t)
	if err := accounts.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("serviceaccounts"), "n", "default", func(o *unstructured.Unstructured) bool { return o != nil && o.GetUID() != account.UID })
}

func TestADeletedNamespaceEndsWithAllInIt(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	for _, c := range []*tenant{c, other} {
		c.namespace("n")
		for i := range 5 {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}}
			if _, err := c.kube.CoreV1().ConfigMaps("n").Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
		if _, err := c.kube.RbacV1().Roles("n").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	if _, err := c.kube.CoreV1().ConfigMaps("n").Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.kube.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", func(o *unstructured.Unstructured) bool {
		said := text(o, "status", "conditions")
		return strings.Contains(said, "configmaps. has 1 resource instances") && strings.Contains(said, "example.com/hold in 1 resource instances")
	})
	_, err := c.kube.CoreV1().ConfigMaps("n").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("created in a namespace that is being deleted: %v", err)
	}
	if _, err := c.kube.CoreV1().ConfigMaps("n").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", gone)
	if l := must(c.kube.CoreV1().ConfigMaps("n").List(t.Context(), metav1.ListOptions{}))(t); len(l.Items) != 0 {
		t.Errorf("left behind: %v", l.Items)
	}
	if l := must(other.kube.CoreV1().ConfigMaps("n").List(t.Context(), metav1.ListOptions{}))(t); len(l.Items) < 5 {
		t.Errorf("the namespace of another cluster has %d config maps", len(l.Items))
	}
	if _, err := other.kube.RbacV1().Roles("n").Get(t.Context(), "r", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	// A new namespace of the same name is empty and complete.
	c.namespace("n")
	c.await(core("configmaps"), "n", "kube-root-ca.crt", there)
	c.await(core("configmaps"), "n", "m0", gone)
}

// A create that was admitted before the deletion of its namespace is refused.
func TestCreateThatIsLateForItsNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.namespace("n")
	late := c.hold("late")
	created := make(chan error, 1)
	go func() {
		_, err := c.kube.CoreV1().ConfigMaps("n").Create(t.Context(), configMap("late", nil), metav1.CreateOptions{})
		created <- err
	}()
	<-late.reached
	if err := c.kube.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", gone)
	close(late.release)
	if err := <-created; !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `namespaces "n" not found`) {
		t.Errorf("created late: %v", err)
	}
	if l := must(c.kube.CoreV1().ConfigMaps("n").List(t.Context(), metav1.ListOptions{}))(t); len(l.Items) != 0 {
		t.Errorf("left behind: %v", l.Items)
	}
}

// tokenSecret returns a secret that requests a token of an account in namespace n.
func tokenSecret(name, account string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
}

func TestTokenSecrets(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.namespace("n")
	accounts, secrets := c.kube.CoreV1().ServiceAccounts("n"), c.kube.CoreV1().Secrets("n")
	account := must(accounts.Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot"}, Secrets: []corev1.ObjectReference{{Name: "short"}, {Name: "kept"}},
	}, metav1.CreateOptions{}))(t)
	for _, s := range []*corev1.Secret{tokenSecret("token", "robot"), tokenSecret("short", "robot"), tokenSecret("orphan", "nobody")} {
		if _, err := secrets.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.await(core("secrets"), "n", "orphan", gone)
	filled := func(o *unstructured.Unstructured) bool { return text(o, "data", "token") != "<nil>" && o != nil }
	o := c.await(core("secrets"), "n", "token", filled)
	for key, want := range map[string]string{"ca.crt": string(c.server.ca), "namespace": "n"} {
		if got, _ := base64.StdEncoding.DecodeString(text(o, "data", key)); string(got) != want {
			t.Errorf("%s is %q", key, got)
		}
	}
	if o.GetAnnotations()[corev1.ServiceAccountUIDKey] != string(account.UID) {
		t.Errorf("annotations are %v", o.GetAnnotations())
	}
	token, _ := base64.StdEncoding.DecodeString(text(o, "data", "token"))
	if err := c.canAuthenticate(string(token)); err != nil {
		t.Error(err)
	}

	// Removed data of the secret is restored.
	if _, err := secrets.Patch(t.Context(), "token", types.MergePatchType, []byte(`{"data":{"token":null,"ca.crt":"eA=="}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("secrets"), "n", "token", func(o *unstructured.Unstructured) bool { return filled(o) && text(o, "data", "ca.crt") != "eA==" })

	// A deleted secret is removed from the account's list.
	if err := secrets.Delete(t.Context(), "short", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("serviceaccounts"), "n", "robot", func(o *unstructured.Unstructured) bool {
		return text(o, "secrets") == "[map[name:kept]]"
	})

	// A new account of the same name has another UID.
	if err := accounts.Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("secrets"), "n", "token", gone)
	if err := c.canAuthenticate(string(token)); !apierrors.IsUnauthorized(err) {
		t.Errorf("the token of an account that is gone: %v", err)
	}
}

func TestAggregatedClusterRoles(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	selecting := func(label string) *rbacv1.AggregationRule {
		return &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}}}
	}
	const toEdit, toAdmin = "rbac.authorization.k8s.io/aggregate-to-edit", "rbac.authorization.k8s.io/aggregate-to-admin"
	rule := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{resource}}}
	}
	create := func(c *tenant, r *rbacv1.ClusterRole) {
		t.Helper()
		if _, err := c.kube.RbacV1().ClusterRoles().Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(c, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sum"}, AggregationRule: selecting("mine")})
	create(c, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "super"}, AggregationRule: selecting(toAdmin)})
	create(c, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: map[string]string{"mine": "true", toEdit: "true"}}, Rules: rule("widgets")})
	create(other, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: map[string]string{"mine": "true"}}, Rules: rule("gadgets")})

	roles := rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	c.await(roles, "", "sum", func(o *unstructured.Unstructured) bool {
		return strings.Contains(text(o, "rules"), "widgets") && !strings.Contains(text(o, "rules"), "gadgets")
	})
	// It has the rules of the built-in role edit, and those aggregated to it here.
	c.await(roles, "", "super", func(o *unstructured.Unstructured) bool {
		return strings.Contains(text(o, "rules"), "widgets") && strings.Contains(text(o, "rules"), "serviceaccounts/token")
	})
	if _, err := c.kube.RbacV1().ClusterRoles().Patch(t.Context(), "part", types.JSONPatchType, []byte(`[{"op":"replace","path":"/rules/0/resources/0","value":"sprockets"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(roles, "", "sum", func(o *unstructured.Unstructured) bool {
		return strings.Contains(text(o, "rules"), "sprockets") && !strings.Contains(text(o, "rules"), "widgets")
	})
}

func TestATenantsRoleExtendsBuiltInRolesInItsClusterOnly(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	alice := &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
	for _, c := range []*tenant{c, other} {
		bind := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "alice"},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		}
		enter := bind.DeepCopy()
		enter.Name, enter.RoleRef.Name = "enter", "system:kcp:workspace:access"
		for _, b := range []*rbacv1.ClusterRoleBinding{bind, enter} {
			if _, err := c.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	as := func(c *tenant) kubernetes.Interface {
		return must(kubernetes.NewForConfig(c.server.InProcess(string(c.name), alice)))(t)
	}
	gets := func(c *tenant) bool {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Group: "example.com", Resource: "widgets", Namespace: "default"},
		}}
		return must(as(c).AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{}))(t).Status.Allowed
	}
	if gets(c) {
		t.Fatal("admin may get widgets from the start")
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}},
	}
	// alice may grant the rights of the extended role, but no others.
	grant := func(c *tenant, name string) error {
		_, err := as(c).RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: role.Rules}, metav1.CreateOptions{})
		return err
	}
	if err := grant(c, "before"); !apierrors.IsForbidden(err) {
		t.Errorf("granted what she does not hold: %v", err)
	}
	if _, err := c.kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !gets(c) {
		t.Error("view, which is part of admin, is not extended")
	}
	if err := grant(c, "after"); err != nil {
		t.Errorf("grant what the extended role allows: %v", err)
	}
	if gets(other) {
		t.Error("a role of another cluster extends admin")
	}
	if err := grant(other, "after"); !apierrors.IsForbidden(err) {
		t.Errorf("a role of another cluster lets her grant: %v", err)
	}
	if err := c.kube.RbacV1().ClusterRoles().Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := grant(c, "again"); !apierrors.IsForbidden(err) {
		t.Errorf("grant what she holds no longer: %v", err)
	}
}

// canAuthenticate reviews a token over the network.
func (c *tenant) canAuthenticate(token string) error {
	client, err := kubernetes.NewForConfig(c.withToken(token))
	if err != nil {
		return err
	}
	_, err = client.AuthenticationV1().SelfSubjectReviews().Create(c.t.Context(), selfReview(), metav1.CreateOptions{})
	return err
}
