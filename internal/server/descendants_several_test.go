package server_test

import (
	"fmt"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/server"
)

func userNamed(name string) (user.Info, rbacv1.Subject) {
	return &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}},
		rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// lists lists secrets at a server as a user, and returns the error.
func (e *equals) lists(s *server.Server, at string, who user.Info) error {
	_, err := e.kube(s, at, who).CoreV1().Secrets("default").List(e.t.Context(), metav1.ListOptions{})
	return err
}

// A binding for descendants applies at all servers as soon as one has acknowledged it, also
// to new workspaces. Its deletion does, too.
func descendantsAtSeveralServers(t *testing.T, e *equals) {
	for i := range 6 {
		a, b := e.all[i%2], e.all[1-i%2]
		carol, subject := userNamed(fmt.Sprint("carol-", i))
		org := string(e.workspace(a, "root", fmt.Sprint("org-", i)))
		team := string(e.workspace(b, org, "team"))
		rbac := e.kube(a, org, server.System()).RbacV1()
		if err := e.lists(b, team, carol); !apierrors.IsForbidden(err) {
			t.Fatalf("without a binding: %v", err)
		}
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "lists"}, Rules: []rbacv1.PolicyRule{may("list", "secrets")}}
		e.ok(second(rbac.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})))
		e.ok(second(rbac.ClusterRoleBindings().Create(t.Context(), binding("carol", "lists", below(), subject), metav1.CreateOptions{})))
		e.ok(e.lists(b, team, carol))
		deep := string(e.workspace(b, team, "deep"))
		e.ok(e.lists(a, deep, carol))
		// The rights change with the role, and end with the label.
		later := rbac.ClusterRoles()
		if i%3 == 0 {
			e.ok(second(later.Patch(t.Context(), "lists", types.MergePatchType, []byte(`{"rules":[]}`), metav1.PatchOptions{})))
		} else {
			e.ok(second(rbac.ClusterRoleBindings().Patch(t.Context(), "carol", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{})))
		}
		b.Store().Feed().Fresh(t.Context()) // allowed requests do not wait for the feed
		for _, at := range []string{team, deep} {
			if err := e.lists(b, at, carol); !apierrors.IsForbidden(err) {
				t.Errorf("after its end: %v", err)
			}
		}
	}
}

// Mallory may write roles and bindings in a workspace, and writes a role and the first
// binding to it concurrently, at the same or different servers. That grants no rights in
// descendants.
func rightsBelowAreDecidedOnTogether(t *testing.T, e *equals) {
	mallory, subject := userNamed("mallory")
	org := string(e.workspace(e.all[0], "root", "org"))
	team := string(e.workspace(e.all[0], org, "team"))
	deep := string(e.workspace(e.all[0], team, "deep"))
	above, here := e.kube(e.all[0], org, server.System()).RbacV1(), e.kube(e.all[0], team, server.System()).RbacV1()
	enter := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "enter"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}}}
	e.ok(second(above.ClusterRoles().Create(t.Context(), enter, metav1.CreateOptions{})))
	e.ok(second(above.ClusterRoleBindings().Create(t.Context(), binding("mallory", "enter", below(), subject), metav1.CreateOptions{})))
	grants := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "grants"}, Rules: []rbacv1.PolicyRule{may("*", "clusterroles"), may("*", "clusterrolebindings"), may("*", "secrets")}}
	e.ok(second(here.ClusterRoles().Create(t.Context(), grants, metav1.CreateOptions{})))
	e.ok(second(here.ClusterRoleBindings().Create(t.Context(), binding("mallory", "grants", nil, subject), metav1.CreateOptions{})))

	var roles, bindings int
	for i := range 40 {
		name := fmt.Sprint("role-", i)
		friend, subject := userNamed(fmt.Sprint("friend-", i))
		e.ok(second(here.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})))
		e.ok(e.lists(e.all[1], team, mallory))
		var both sync.WaitGroup
		var role, bound error
		roleAt, bindingAt := e.kube(e.all[i%2], team, mallory).RbacV1(), e.kube(e.all[i/2%2], team, mallory).RbacV1()
		both.Go(func() {
			role = second(roleAt.ClusterRoles().Patch(t.Context(), name, types.MergePatchType,
				[]byte(`{"rules":[{"verbs":["list"],"apiGroups":[""],"resources":["secrets"]}]}`), metav1.PatchOptions{}))
		})
		both.Go(func() {
			bound = second(bindingAt.ClusterRoleBindings().Create(t.Context(), binding(name, name, below(), subject), metav1.CreateOptions{}))
		})
		both.Wait()
		if role == nil {
			roles++
		}
		if bound == nil {
			bindings++
		}
		for _, err := range []error{role, bound} {
			if err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("neither granted nor forbidden: %v", err)
			}
		}
		if (role == nil) == (bound == nil) {
			t.Errorf("of a role and its binding one is allowed: %v, %v", role, bound)
		}
		if err := e.lists(e.all[0], deep, friend); !apierrors.IsForbidden(err) {
			t.Errorf("the friend gets what mallory does not have: %v", err)
		}
	}
	t.Logf("%d roles and %d bindings came first", roles, bindings)
}
