package server_test

import (
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authz"
)

// newOrganization returns a workspace, two workspaces in it, and one in the first of these.
func newOrganization(t *testing.T) (org, team, deep, side *tenant) {
	t.Helper()
	org = newTenant(t)
	team, side = org.workspace("team"), org.workspace("side")
	return org, team, team.workspace("deep"), side
}

func (c *tenant) clusterRole(name string, rules ...rbacv1.PolicyRule) {
	c.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := c.kube.RbacV1().ClusterRoles().Create(c.t.Context(), role, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func may(verb, resource string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{"", rbacv1.GroupName}, Resources: []string{resource}}
}

// A binding for descendants applies to all levels without delay, also to later workspaces. It
// follows changes of its role and ends without delay. It does not apply in its own workspace
// and siblings.
func TestDescendants(t *testing.T) {
	t.Parallel()
	org, team, deep, side := newOrganization(t)
	all := []*tenant{org, team, deep, side}
	bob := org.person("bob")
	ctx := t.Context()
	bob.onlyAllowed(ctx, all)
	team.clusterRole("lists", may("list", "configmaps"))
	team.bindBelow("bob", "lists", bob.subject())
	if _, err := bob.kube(deep).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("below: %v", err)
	}
	bob.onlyAllowed(ctx, all)
	// A role of the same name in a descendant is unrelated.
	deep.clusterRole("lists", may("*", "*"))
	bob.onlyAllowed(ctx, all)
	// The role changes, and a new workspace is created.
	patch := []byte(`{"rules":[{"verbs":["list"],"apiGroups":[""],"resources":["secrets"]}]}`)
	if _, err := team.kube.RbacV1().ClusterRoles().Patch(ctx, "lists", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	late := deep.workspace("late")
	all = append(all, late)
	bob.onlyAllowed(ctx, all, deep, late)
	// A binding without the label applies in its own workspace.
	team.bind("enter", authz.WorkspaceAccessRole, bob.subject())
	bob.onlyAllowed(ctx, all, team, deep, late)
	// Reviews include inherited rights.
	review, err := bob.kube(late).AuthorizationV1().SelfSubjectRulesReviews().Create(ctx,
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	if err != nil || !strings.Contains(review.String(), "secrets") || !strings.Contains(review.String(), `"access"`) && !strings.Contains(review.String(), "access") {
		t.Errorf("his rules: %v, %v", review, err)
	}
	// Without the label the binding applies in its own workspace only.
	patch = []byte(`{"metadata":{"labels":null}}`)
	if _, err := team.kube.RbacV1().ClusterRoleBindings().Patch(ctx, "bob", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	bob.onlyAllowed(ctx, all, team)
}

// Bindings for descendants also apply to groups and to service accounts of their workspace,
// but not to accounts of the same name in descendants.
func TestDescendantsOfGroupsAndAccounts(t *testing.T) {
	t.Parallel()
	org, team, deep, side := newOrganization(t)
	devs := "devs-of-" + string(org.name)
	org.bindBelow("devs", "admin", groupNamed(devs))
	member := org.person("member", devs)
	member.onlyAllowed(t.Context(), []*tenant{org, team, deep, side}, team, deep, side)
	robot, namesake := org.account("robot"), team.account("robot")
	org.bindBelow("robot", "cluster-admin", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"})
	lists := func(c *tenant, token string) error {
		_, err := must(kubernetes.NewForConfig(c.withToken(token)))(t).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := lists(deep, robot); err != nil {
		t.Errorf("the account: %v", err)
	}
	for _, c := range []*tenant{team, deep, side} {
		if err := lists(c, namesake); !apierrors.IsForbidden(err) {
			t.Errorf("its namesake in %s: %v", c.name, err)
		}
	}
}

// With no kind of write can users grant rights in descendants that they do not have there.
func TestDescendantsCannotBeForged(t *testing.T) {
	t.Parallel()
	org, team, deep, _ := newOrganization(t)
	ctx := t.Context()
	// Mallory may grant rights in team, but has none in its descendants.
	mallory, friend := org.person("mallory"), org.person("friend")
	team.clusterRole("grants", may("*", "clusterroles"), may("*", "clusterrolebindings"), may("*", "secrets"),
		rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}})
	team.clusterRole("nothing-yet")
	team.bind("mallory", "grants", mallory.subject())
	team.bindBelow("kept", "nothing-yet", friend.subject())
	bindings := mallory.kube(team).RbacV1().ClusterRoleBindings()
	roles := mallory.kube(team).RbacV1().ClusterRoles()
	if _, err := bindings.Create(ctx, binding("plain", "grants", nil, friend.subject()), metav1.CreateOptions{}); err != nil {
		t.Fatalf("what she has here she can give here: %v", err)
	}
	const label = `{"metadata":{"labels":{"` + coreapi.DescendantsLabel + `":"true"}}}`
	plain := must(bindings.Get(ctx, "plain", metav1.GetOptions{}))(t)
	plain.Labels = below()
	kept := must(bindings.Get(ctx, "kept", metav1.GetOptions{}))(t)
	kept.Subjects = append(kept.Subjects, mallory.subject())
	for way, err := range map[string]error{
		"create":           second(bindings.Create(ctx, binding("forged", "grants", below(), friend.subject()), metav1.CreateOptions{})),
		"dry run":          second(bindings.Create(ctx, binding("forged", "grants", below(), friend.subject()), metav1.CreateOptions{DryRun: []string{"All"}})),
		"unknown role":     second(bindings.Create(ctx, binding("forged", "not-there", below(), friend.subject()), metav1.CreateOptions{})),
		"update":           second(bindings.Update(ctx, plain, metav1.UpdateOptions{})),
		"patch":            second(bindings.Patch(ctx, "plain", types.MergePatchType, []byte(label), metav1.PatchOptions{})),
		"strategic patch":  second(bindings.Patch(ctx, "plain", types.StrategicMergePatchType, []byte(label), metav1.PatchOptions{})),
		"further subjects": second(bindings.Update(ctx, kept, metav1.UpdateOptions{})),
		"the role": second(roles.Patch(ctx, "nothing-yet", types.MergePatchType,
			[]byte(`{"rules":[{"verbs":["list"],"apiGroups":[""],"resources":["secrets"]}]}`), metav1.PatchOptions{})),
		"apply": second(bindings.Patch(ctx, "plain", types.ApplyPatchType,
			[]byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"plain","labels":{"`+coreapi.DescendantsLabel+`":"true"}},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"grants"}}`),
			metav1.PatchOptions{FieldManager: "m"})),
	} {
		if !apierrors.IsForbidden(err) && !(way == "unknown role" && apierrors.IsNotFound(err)) {
			t.Errorf("%s: %v", way, err)
		}
	}
	friend.onlyAllowed(ctx, []*tenant{deep})
	// Users who have the rights in descendants, or all rights, may grant them.
	org.clusterRole("grants", may("*", "clusterroles"), may("*", "clusterrolebindings"), may("*", "secrets"), rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}})
	org.bindBelow("mallory", "grants", mallory.subject())
	if _, err := bindings.Create(ctx, binding("passed", "grants", below(), friend.subject()), metav1.CreateOptions{}); err != nil {
		t.Errorf("who has the rights below: %v", err)
	}
	friend.onlyAllowed(ctx, []*tenant{deep}, deep)
	if _, err := bindings.Create(ctx, binding("more", "cluster-admin", below(), friend.subject()), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("more than she has: %v", err)
	}
	owner := org.person("owner")
	team.bind("owner", "cluster-admin", owner.subject())
	if _, err := owner.kube(team).RbacV1().ClusterRoleBindings().Create(ctx, binding("owners", "cluster-admin", below(), owner.subject()), metav1.CreateOptions{}); err != nil {
		t.Errorf("who may do anything: %v", err)
	}
	owner.onlyAllowed(ctx, []*tenant{deep}, deep)
}

func second[T any](_ T, err error) error { return err }

// Owners of a workspace can impersonate any user in it, but that gives no rights in parents
// and siblings. They cannot remove inherited rights.
func TestDescendantsFromBelow(t *testing.T) {
	t.Parallel()
	org, team, deep, side := newOrganization(t)
	boss, owner := org.person("boss"), org.person("owner")
	org.bind("boss-here", "cluster-admin", boss.subject())
	org.bindBelow("boss", "cluster-admin", boss.subject())
	team.bind("owner", "cluster-admin", owner.subject())
	const secrets = "/api/v1/namespaces/default/secrets"
	as := []string{"Impersonate-User", boss.info.Name}
	for target, want := range map[string]int{team.path(secrets): 200, deep.path(secrets): 403, org.path(secrets): 403, side.path(secrets): 403} {
		if code, body := owner.get(target, nil, as...); code != want {
			t.Errorf("as the boss, %s: %d %s", target, code, body)
		}
	}
	if _, err := owner.kube(team).RbacV1().ClusterRoleBindings().Get(t.Context(), "boss", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the binding above is to be seen below: %v", err)
	}
	var list rbacv1.ClusterRoleBindingList
	if code, body := owner.get("/services/inheritedbindings?workspace="+string(team.name), &list); code != http.StatusOK || len(list.Items) != 1 ||
		list.Items[0].Annotations[coreapi.ClusterAnnotation] != string(org.name) || list.Items[0].Subjects[0].Name != boss.info.Name {
		t.Errorf("the owner is told: %d %s", code, body)
	}
	guest := org.person("guest")
	team.bind("guest", authz.WorkspaceAccessRole, guest.subject())
	if code, body := guest.get("/services/inheritedbindings?workspace="+string(team.name), nil); code != http.StatusForbidden {
		t.Errorf("a guest is told: %d %s", code, body)
	}
	boss.onlyAllowed(t.Context(), []*tenant{org, team, deep, side}, org, team, deep, side)
}
