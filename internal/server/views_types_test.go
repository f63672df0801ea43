package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
)

// kind creates a workspace type and returns the name of its initializer.
func (c *tenant) kind(name string, spec map[string]any) string {
	c.t.Helper()
	spec["extend"] = map[string]any{"with": []any{map[string]any{"name": "universal", "path": "root"}}}
	must(c.any.Resource(workspaceTypes).Create(c.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceType", "metadata": map[string]any{"name": name}, "spec": spec,
	}}, metav1.CreateOptions{}))(c.t)
	return string(c.name) + ":" + name
}

// workspaceOf creates a workspace of a type in the same cluster.
func (c *tenant) workspaceOf(kind, name string) *tenant {
	c.t.Helper()
	ws := workspace(name)
	_ = unstructured.SetNestedStringMap(ws.Object, map[string]string{"name": kind, "path": string(c.name)}, "spec", "type") // a map of strings cannot fail
	made := must(c.any.Resource(workspaces).Create(c.t.Context(), ws, metav1.CreateOptions{}))(c.t)
	w := *c
	w.name = clusterOf(made)
	return &w
}

func rules(all ...map[string]any) []any {
	out := make([]any, len(all))
	for i, r := range all {
		out[i] = r
	}
	return out
}

func rule(group string, resources, verbs []any) map[string]any {
	return map[string]any{"apiGroups": []any{group}, "resources": resources, "verbs": verbs}
}

// With permissions in the type, an initializer acts as itself with exactly these rights. It
// has no rights of the creator, and cannot extend its own.
func TestAnInitializerHasThePermissionsOfItsType(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	id := home.kind("web", map[string]any{"initializer": true, "terminator": true,
		"initializerPermissions": rules(rule("", []any{"configmaps"}, []any{"get", "create"}),
			rule("rbac.authorization.k8s.io", []any{"roles", "rolebindings", "clusterroles", "clusterrolebindings"}, []any{"get", "list", "create"}),
			rule("authorization.k8s.io", []any{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}, []any{"create"}),
			rule("authentication.k8s.io", []any{"selfsubjectreviews"}, []any{"create"})),
		"terminatorPermissions": rules(rule("", []any{"configmaps"}, []any{"list", "delete"}))})
	home.mayVerb("ina", "initialize", "web")
	home.mayVerb("tom", "terminate", "web")
	home.allow("alice")
	alice := at(t, home.server, home.name, as("alice"))
	w := alice.workspaceOf("web", "w")
	home.in(workspaces, "w", "Initializing")
	kube := home.initializing(id, as("ina")).kube(w.name)
	maps := kube.CoreV1().ConfigMaps("default")
	must(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
	must(maps.Get(t.Context(), "m", metav1.GetOptions{}))(t)
	_, listErr := maps.List(t.Context(), metav1.ListOptions{})
	_, secretErr := kube.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	for what, err := range map[string]error{
		"list": listErr, "delete": maps.Delete(t.Context(), "m", metav1.DeleteOptions{}), "secrets": secretErr,
		"escalate": grantAll(t, kube, "ina"), "bind": bindAdmin(t, kube, "ina"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// It may grant the rights that it has.
	_, err := kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "own"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("a role with its own permissions: %v", err)
	}
	review := must(kube.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{}))(t)
	if u := review.Status.UserInfo; u.Username != "ina" || !slices.Contains(u.Groups, "system:kcp:initializer:"+id) {
		t.Errorf("it acts as %v", u)
	}
	if _, err := kube.Discovery().ServerGroups(); err != nil {
		t.Errorf("discovery: %v", err)
	}
	// Outside of the view it has no rights.
	outside := at(t, home.server, w.name, as("ina")).kube
	if _, err := outside.CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("outside of the view: %v", err)
	}
	if err := finish(t.Context(), home.initializing(id, as("ina")).clusters(string(w.name)), "initializers", id); err != nil {
		t.Fatal(err)
	}
	home.in(workspaces, "w", "Ready")
	if _, err := maps.Get(t.Context(), "m", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("when it is ready: %v", err)
	}

	alice.deleteWorkspace("w")
	home.says(workspaces, "w", "terminator "+id+" has not finished")
	end := home.terminating(id, as("tom"))
	maps = end.kube(w.name).CoreV1().ConfigMaps("default")
	must(maps.List(t.Context(), metav1.ListOptions{}))(t)
	if _, err := maps.Get(t.Context(), "m", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the terminator has the permissions of the initializer: %v", err)
	}
	if err := maps.Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := home.terminating(id, as("ina")).clusters("*").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the initializer terminates: %v", err)
	}
	if err := finish(t.Context(), end.clusters(string(w.name)), "terminators", id); err != nil {
		t.Fatal(err)
	}
	home.ended("w", w.name)
}

func grantAll(t *testing.T, kube kubernetes.Interface, who string) error {
	_, err := kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all-" + who},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}}, metav1.CreateOptions{})
	return err
}

func bindAdmin(t *testing.T, kube kubernetes.Interface, who string) error {
	_, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "admin-" + who},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: who}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}, metav1.CreateOptions{})
	return err
}

// A service account of the type's cluster can be an initializer. In other clusters it is not
// an account of theirs.
func TestAServiceAccountIsAnInitializer(t *testing.T) {
	t.Parallel()
	home := newTenant(t)
	id := home.kind("web", map[string]any{"initializer": true, "initializerPermissions": rules(rule("", []any{"configmaps"}, []any{"*"}),
		rule("authentication.k8s.io", []any{"selfsubjectreviews"}, []any{"create"}))})
	token := home.account("robot")
	home.mayVerb("system:serviceaccount:default:robot", "initialize", "web")
	w := home.workspaceOf("web", "w")
	config := home.withToken(token)
	config.Host = strings.TrimSuffix(config.Host, "/clusters/"+string(home.name)) + home.initializing(id, nil).url + string(w.name)
	kube := must(kubernetes.NewForConfig(config))(t)
	must(kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t)
	review := must(kube.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), selfReview(), metav1.CreateOptions{}))(t)
	if want := fmt.Sprintf("system:kcp:serviceaccount:%s:default:robot", home.name); review.Status.UserInfo.Username != want {
		t.Errorf("it is %v, not %s", review.Status.UserInfo, want)
	}
}
