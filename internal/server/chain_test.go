package server_test

import (
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authz"
)

// require sets the required groups of the tenant's cluster, as this person.
func (p person) require(c *tenant, groups string) error {
	client := must(dynamic.NewForConfig(p.server.InProcess(string(c.name), p.info)))(p.t).Resource(coreapi.GroupVersion.WithResource("logicalclusters"))
	patch := []byte(`{"metadata":{"annotations":{"` + coreapi.RequiredGroupsAnnotation + `":"` + groups + `"}}}`)
	_, err := client.Patch(p.t.Context(), coreapi.LogicalClusterName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (c *tenant) masters() person {
	return person{c.t, c.server, &user.DefaultInfo{Name: "shard-admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}
}

// Only members of its required groups can enter a cluster, whatever its RBAC grants. The
// requirement applies without delay, also to workspaces in the cluster.
func TestRequiredGroupsOnTheServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	staff := "staff-of-" + string(c.name)
	alice, bob := c.person("alice"), c.person("bob", staff)
	robot := c.account("robot")
	c.bind("alice", "cluster-admin", alice.subject())
	c.bind("bob", "cluster-admin", bob.subject())
	c.bind("robot", "cluster-admin", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"})
	among := []*tenant{c}
	alice.onlyAllowed(t.Context(), among, c)
	if err := c.masters().require(c, staff+"; x"); !apierrors.IsForbidden(err) {
		t.Errorf("groups with a space: %v", err)
	}
	if err := c.masters().require(c, "x,y;"+staff); err != nil {
		t.Fatal(err)
	}
	alice.onlyAllowed(t.Context(), among)
	bob.onlyAllowed(t.Context(), among, c)
	if got := c.visitor("robot", robot).send("GET", c.path("/api/v1/namespaces/default/secrets"), ""); got.code != 200 {
		t.Errorf("a service account: %d %s", got.code, got.body)
	}
	if e, code, body := bob.explained(string(c.name), "user", alice.info.Name); code != 200 || e.Access.Allowed || lastStep(e).Name != authz.StepRequiredGroups || !strings.Contains(e.Access.Message, "groups") {
		t.Errorf("it is explained as %d %s", code, body)
	}
	if diff := alice.reaches(c); diff != nil {
		t.Errorf("she is told of it: %v", diff)
	}
	below := c.workspace("below")
	below.bind("alice", "cluster-admin", alice.subject())
	alice.onlyAllowed(t.Context(), []*tenant{below})
}

// Only the system can set the required groups of a cluster.
func TestRequiredGroupsCannotBeForged(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	owner := c.person("owner")
	c.bind("owner", "cluster-admin", owner.subject())
	any := must(dynamic.NewForConfig(c.server.InProcess(string(c.name), owner.info)))(t)
	lc := any.Resource(coreapi.GroupVersion.WithResource("logicalclusters"))
	annotated := func(o *unstructured.Unstructured) *unstructured.Unstructured {
		o = o.DeepCopy()
		a := o.GetAnnotations()
		if a == nil {
			a = map[string]string{}
		}
		a[coreapi.RequiredGroupsAnnotation] = "mine"
		o.SetAnnotations(a)
		return o
	}
	ctx := t.Context()
	update := func(write func(*unstructured.Unstructured) (*unstructured.Unstructured, error)) error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error { // with loops of the server
			return second(write(annotated(must(lc.Get(ctx, coreapi.LogicalClusterName, metav1.GetOptions{}))(t))))
		})
	}
	admin := must(dynamic.NewForConfig(c.server.InProcess(string(c.name), &user.DefaultInfo{Name: "a", Groups: []string{auth.AdminGroup, user.AllAuthenticated}})))(t)
	apply := []byte(`{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster","annotations":{"` + coreapi.RequiredGroupsAnnotation + `":"mine"}}}`)
	for way, err := range map[string]error{
		"patch": owner.require(c, "mine"),
		"update": update(func(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return lc.Update(ctx, o, metav1.UpdateOptions{})
		}),
		"dry run": update(func(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return lc.Update(ctx, o, metav1.UpdateOptions{DryRun: []string{"All"}})
		}),
		"status": update(func(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return lc.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		}),
		"apply":       second(lc.Patch(ctx, coreapi.LogicalClusterName, types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "m"})),
		"a workspace": second(any.Resource(workspaces).Create(ctx, annotated(workspace("forged")), metav1.CreateOptions{})),
		"as kcp-admin": update(func(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return admin.Resource(coreapi.GroupVersion.WithResource("logicalclusters")).Update(ctx, o, metav1.UpdateOptions{})
		}),
		"impersonation": owner.asMasters(c),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", way, err)
		}
	}
	again := must(lc.Get(ctx, coreapi.LogicalClusterName, metav1.GetOptions{}))(t)
	if again.GetAnnotations()[coreapi.RequiredGroupsAnnotation] != "" {
		t.Errorf("it requires %v", again.GetAnnotations())
	}
	if err := c.masters().require(c, "other"); err != nil {
		t.Fatal(err)
	}
	if err := owner.require(c, "mine"); !apierrors.IsForbidden(err) {
		t.Errorf("who is locked out: %v", err)
	}
}

// asMasters tries to impersonate system:masters.
func (p person) asMasters(c *tenant) error {
	config := p.server.InProcess(string(c.name), p.info)
	config.Impersonate.UserName, config.Impersonate.Groups = "x", []string{user.SystemPrivilegedGroup}
	_, err := must(kubernetes.NewForConfig(config))(p.t).CoreV1().Secrets("default").List(p.t.Context(), metav1.ListOptions{})
	return err
}

// Owners can impersonate any user in their workspace, but get no rights elsewhere, neither by
// impersonation nor by extra fields of the impersonated user.
func TestNobodyIsBroughtFromElsewhere(t *testing.T) {
	t.Parallel()
	org, team, deep, side := newOrganization(t)
	owner, boss := team.owner(), org.person("boss")
	for _, c := range []*tenant{org, team, deep, side} {
		c.bind("boss", "cluster-admin", boss.subject())
		c.bind("strangers", "cluster-admin", groupNamed("friends"))
	}
	const secrets = "/api/v1/namespaces/default/secrets"
	as := func(pairs ...string) []string { return append([]string{"Impersonate-User", boss.info.Name}, pairs...) }
	for name, headers := range map[string][]string{
		"a user":             as(),
		"a group":            as("Impersonate-Group", "friends"),
		"masters":            as("Impersonate-Group", "system:masters"),
		"kcp-admin":          as("Impersonate-Group", auth.AdminGroup),
		"bootstrapper":       as("Impersonate-Group", auth.WorkspaceBootstrapperGroup),
		"initializer":        as("Impersonate-Group", auth.InitializerGroupPrefix+"root:universal"),
		"a scope":            as("Impersonate-Extra-Authentication.kcp.io%2Fscopes", "cluster:"+string(side.name)),
		"a warrant":          as("Impersonate-Extra-Authorization.kcp.io%2Fwarrant", `{"user":"x","groups":["`+auth.AdminGroup+`"]}`),
		"an account":         {"Impersonate-User", "system:serviceaccount:default:default", "Impersonate-Extra-Authentication.kcp.io%2Fcluster-name", string(side.name)},
		"a deep review":      as(authz.DeepReviewHeader, "true"),
		"headers of proxies": {"X-Remote-User", boss.info.Name, "X-Remote-Group", "system:masters", "X-Remote-Extra-Authentication.kcp.io%2Fscopes", "x"},
	} {
		for _, c := range []*tenant{org, deep, side} {
			if got := owner.send("GET", c.path(secrets), "", headers...); got.code != 403 {
				t.Errorf("%s in %s: %d %s", name, c.name, got.code, got.body)
			}
		}
	}
	if got := owner.send("GET", team.path(secrets), "", as("Impersonate-Group", "friends")...); got.code != 200 {
		t.Errorf("at home: %d %s", got.code, got.body)
	}
	for name, headers := range map[string][]string{
		"a warrant": as("Impersonate-Extra-Authorization.kcp.io%2Fwarrant", `{"user":"x"}`),
		"a scope":   as("Impersonate-Extra-Authentication.kcp.io%2Fscopes", "cluster:"+string(team.name)),
		"masters":   as("Impersonate-Group", "system:masters"),
	} {
		if got := owner.send("GET", team.path(secrets), "", headers...); got.code != 403 {
			t.Errorf("%s at home: %d %s", name, got.code, got.body)
		}
	}
	// The extra fields of an impersonated user contain the scope.
	review := owner.send("POST", team.path("/apis/authentication.k8s.io/v1/selfsubjectreviews"), `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`, append(as(), "Content-Type", "application/json")...)
	if !strings.Contains(review.body, `"authentication.kcp.io/scopes":["cluster:`+string(team.name)+`"]`) {
		t.Errorf("who am I: %d %s", review.code, review.body)
	}
}

// The header for deep reviews lets system:masters review RBAC without the right to enter. It
// has no effect for other users.
func TestDeepReviewsOnTheServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	bob, admin := c.person("bob"), c.person("admin")
	c.clusterRole("lists", may("list", "secrets"))
	c.bind("bob", "lists", bob.subject())
	c.bind("admin", "cluster-admin", admin.subject())
	ask := func(p person, deep bool) bool {
		t.Helper()
		config := p.server.InProcess(string(c.name), p.info)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if deep {
					req.Header.Set(authz.DeepReviewHeader, "true")
				}
				return next.RoundTrip(req)
			})
		})
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: bob.info.Name, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"},
		}}
		return must(must(kubernetes.NewForConfig(config))(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{}))(t).Status.Allowed
	}
	for _, tt := range []struct {
		by         person
		deep, want bool
	}{{c.masters(), true, true}, {c.masters(), false, false}, {admin, true, false}, {admin, false, false}} {
		if got := ask(tt.by, tt.deep); got != tt.want {
			t.Errorf("%s, deep: %v: %v", tt.by.info.Name, tt.deep, got)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// RBAC of any cluster can grant rights to the global name of a service account.
func TestForeignServiceAccounts(t *testing.T) {
	t.Parallel()
	home, other := newTenant(t), newTenant(t)
	token := home.account("robot")
	other.account("robot")
	global := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kcp:serviceaccount:" + string(home.name) + ":default:robot"}
	const secrets = "/api/v1/namespaces/default/secrets"
	robot := home.visitor("robot", token)
	for _, c := range []*tenant{home, other} {
		if got := robot.send("GET", c.path(secrets), ""); got.code != 403 {
			t.Errorf("without rights in %s: %d %s", c.name, got.code, got.body)
		}
		c.bind("global", "cluster-admin", global)
		if got := robot.send("GET", c.path(secrets), ""); got.code != 200 {
			t.Errorf("with rights in %s: %d %s", c.name, got.code, got.body)
		}
	}
	third := newTenant(t)
	third.bind("cluster", "cluster-admin", groupNamed(auth.ClusterGroupPrefix+string(home.name)))
	if got := robot.send("GET", third.path(secrets), ""); got.code != 200 {
		t.Errorf("by the group of its cluster: %d %s", got.code, got.body)
	}
	if got := third.visitor("robot", other.token("robot")).send("GET", third.path(secrets), ""); got.code != 403 {
		t.Errorf("its namesake: %d %s", got.code, got.body)
	}
}

// A role binding to cluster-admin in a namespace does not grant the right to enter the
// cluster.
func TestRoleBindingsLetNobodyIn(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	bob := c.person("bob")
	bind := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bob"}, Subjects: []rbacv1.Subject{bob.subject()},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}
	if _, err := c.kube.RbacV1().RoleBindings("default").Create(t.Context(), bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bob.onlyAllowed(t.Context(), []*tenant{c})
	c.bind("bob", authz.WorkspaceAccessRole, bob.subject())
	bob.onlyAllowed(t.Context(), []*tenant{c}, c)
}

// In phases without requests, only the system can enter.
func TestPhasesOnTheServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	owner := c.person("owner")
	c.bind("owner", "cluster-admin", owner.subject())
	set := func(p coreapi.Phase) {
		t.Helper()
		client := must(dynamic.NewForConfig(c.config()))(t).Resource(coreapi.GroupVersion.WithResource("logicalclusters"))
		if _, err := client.Patch(t.Context(), coreapi.LogicalClusterName, types.MergePatchType, []byte(`{"status":{"phase":"`+string(p)+`"}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	// A loop completes a cluster in phase Scheduling at once, so that phase is not tested here.
	for p, want := range map[coreapi.Phase][]*tenant{coreapi.PhaseUnavailable: nil, coreapi.PhaseReady: {c}} {
		set(p)
		owner.onlyAllowed(t.Context(), []*tenant{c}, want...)
	}
	set(coreapi.PhaseUnavailable)
	if _, code, body := owner.explained(string(c.name)); code != 403 {
		t.Errorf("while it is unavailable: %d %s", code, body)
	}
	e, code, body := c.masters().explained(string(c.name), "user", owner.info.Name)
	if code != 200 || e.Access.Allowed || lastStep(e).Name != authz.StepContent || e.Phase != coreapi.PhaseUnavailable {
		t.Errorf("the system is told %d %s", code, body)
	}
}
