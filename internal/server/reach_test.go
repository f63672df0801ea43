package server_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
)

// A person is a user with in-process requests.
type person struct {
	t      *testing.T
	server *running
	info   *user.DefaultInfo
}

// person returns a user with a unique name.
func (c *tenant) person(name string, groups ...string) person {
	return person{c.t, c.server, &user.DefaultInfo{Name: c.unique(name), Groups: append(groups, user.AllAuthenticated)}}
}

// kube returns a client of the person for a tenant's cluster.
func (p person) kube(at *tenant) kubernetes.Interface {
	return must(kubernetes.NewForConfig(p.server.InProcess(string(at.name), p.info)))(p.t)
}

// get sends a request, and decodes a successful response into a value.
func (p person) get(target string, into any, headers ...string) (code int, body string) {
	p.t.Helper()
	req := must(http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://kcp"+target, nil))(p.t)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp := must(p.server.InProcess("root", p.info).Transport.RoundTrip(req))(p.t)
	defer resp.Body.Close()
	text := must(io.ReadAll(resp.Body))(p.t)
	if resp.StatusCode == http.StatusTooManyRequests { // the other tests keep the server busy
		return p.get(target, into, headers...)
	}
	if resp.StatusCode == http.StatusOK && into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			p.t.Fatalf("%s: %v in %s", target, err, text)
		}
	}
	return resp.StatusCode, string(text)
}

// reaches returns those of the given clusters that the server lists as reachable for a
// person.
func (p person) reaches(among ...*tenant) []string {
	p.t.Helper()
	var names []string
	next := ""
	for {
		var list tenancyapi.WorkspaceList
		if code, body := p.get("/services/reachableworkspaces?limit=2&continue="+next, &list); code != http.StatusOK {
			p.t.Fatalf("%s: %d %s", p.info.Name, code, body)
		}
		for _, w := range list.Items {
			if i := slices.IndexFunc(among, func(c *tenant) bool { return string(c.name) == w.Spec.Cluster }); i >= 0 {
				names = append(names, w.Spec.Cluster)
			}
		}
		if next = list.Continue; next == "" {
			slices.Sort(names)
			return names
		}
	}
}

func namesOf(of ...*tenant) []string {
	var names []string
	for _, c := range of {
		names = append(names, string(c.name))
	}
	slices.Sort(names)
	return names
}

// bind creates a ClusterRoleBinding in the tenant's cluster as the system.
func (c *tenant) bind(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	c.t.Helper()
	return must(c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), binding(name, role, nil, subjects...), metav1.CreateOptions{}))(c.t)
}

// bindBelow creates a ClusterRoleBinding that applies to descendants.
func (c *tenant) bindBelow(name, role string, subjects ...rbacv1.Subject) {
	c.t.Helper()
	if _, err := c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), binding(name, role, below(), subjects...), metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func below() map[string]string { return map[string]string{coreapi.DescendantsLabel: "true"} }

func binding(name, role string, labels map[string]string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func (p person) subject() rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: p.info.Name}
}

func groupNamed(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

func (c *tenant) unbind(name string) {
	c.t.Helper()
	if err := c.kube.RbacV1().ClusterRoleBindings().Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// Users get exactly the list of workspaces that they can enter, at any depth, without delay.
func TestReachableWorkspaces(t *testing.T) {
	t.Parallel()
	org := newTenant(t)
	team := org.workspace("team")
	deep := team.workspace("deep")
	side := org.workspace("side")
	all := []*tenant{org, team, deep, side}
	bob, carol, dave := org.person("bob"), org.person("carol", "devs-of-"+string(org.name)), org.person("dave")
	robot := side.account("robot")
	expect := func(p person, want ...*tenant) {
		t.Helper()
		if diff := cmp.Diff(namesOf(want...), p.reaches(all...)); diff != "" {
			t.Errorf("%s reaches: (-want +got)\n%s", p.info.Name, diff)
		}
	}
	expect(bob)
	deep.bind("bob-enters", authz.WorkspaceAccessRole, bob.subject())
	expect(bob, deep)
	team.bind("bob-views", "view", bob.subject()) // does not grant the right to enter
	expect(bob, deep)
	side.bind("devs", "cluster-admin", groupNamed("devs-of-"+string(org.name)))
	expect(carol, side)
	org.bindBelow("dave", "view", dave.subject())
	expect(dave, team, deep, side)
	expect(person{t, org.server, &user.DefaultInfo{Name: authn.KcpAdmin, Groups: []string{auth.AdminGroup, user.AllAuthenticated}}}, all...)
	expect(person{t, org.server, &user.DefaultInfo{Name: "x", Groups: []string{user.SystemPrivilegedGroup}}}, all...)
	deep.unbind("bob-enters")
	org.unbind("dave")
	expect(bob)
	expect(dave)

	// A service account can enter its own workspace, and others by its global name.
	deep.bind("robot", authz.WorkspaceAccessRole, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kcp:serviceaccount:" + string(side.name) + ":default:robot"})
	var list tenancyapi.WorkspaceList
	got := side.visitor("robot", robot).send("GET", "/services/reachableworkspaces", "")
	if err := json.Unmarshal([]byte(got.body), &list); got.code != 200 || err != nil {
		t.Fatalf("%d %s: %v", got.code, got.body, err)
	}
	var names []string
	for _, w := range list.Items {
		names = append(names, w.Spec.Cluster)
	}
	for _, c := range []*tenant{side, deep} {
		if !slices.Contains(names, string(c.name)) {
			t.Errorf("the account is not told of %s: %v", c.name, names)
		}
	}
	if slices.Contains(names, string(team.name)) || slices.Contains(names, string(org.name)) {
		t.Errorf("it is told of what it may not enter: %v", names)
	}
}

// Users who may not enter the parents can use each listed workspace by path and by name.
func TestSharedBesideTheTree(t *testing.T) {
	t.Parallel()
	org := newTenant(t)
	team := org.workspace("team")
	bob := org.person("bob")
	team.bind("bob-enters", authz.WorkspaceAccessRole, bob.subject())
	team.bind("bob-edits", "edit", bob.subject())
	var list tenancyapi.WorkspaceList
	if code, body := bob.get("/services/reachableworkspaces", &list); code != 200 || list.Kind != "WorkspaceList" || list.APIVersion != "tenancy.kcp.io/v1alpha1" {
		t.Fatalf("%d %s", code, body)
	}
	i := slices.IndexFunc(list.Items, func(w tenancyapi.Workspace) bool { return w.Spec.Cluster == string(team.name) })
	if i < 0 {
		t.Fatalf("it is not listed: %v", list.Items)
	}
	w := list.Items[i]
	path := string(org.name) + ":team"
	if w.Name != "team" || w.Annotations[coreapi.PathAnnotation] != path || !strings.HasSuffix(w.Spec.URL, "/clusters/"+path) || w.Status.Phase != coreapi.PhaseReady || w.CreationTimestamp.IsZero() {
		t.Errorf("it says %+v", w)
	}
	for _, at := range []string{path, string(team.name)} {
		if code, body := bob.get("/clusters/"+at+"/api/v1/namespaces/default/configmaps", nil); code != 200 {
			t.Errorf("at %s: %d %s", at, code, body)
		}
	}
	for _, target := range []string{org.path("/api"), org.path("/apis/tenancy.kcp.io/v1alpha1/workspaces")} {
		if code, body := bob.get(target, nil); code != 403 {
			t.Errorf("above it, %s: %d %s", target, code, body)
		}
	}
}

func TestQuestionsThatAreNotAnswered(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	owner := c.owner()
	bob := c.person("bob")
	for _, path := range []string{"/services/reachableworkspaces", "/services/explainworkspace?workspace=root", "/services/inheritedbindings?workspace=root"} {
		if got := c.anonymous().send("GET", path, ""); got.code != 403 {
			t.Errorf("anonymous gets %s: %d %s", path, got.code, got.body)
		}
		if got := owner.send("POST", path, "{}"); got.code != 403 && got.code != 405 {
			t.Errorf("a write to %s: %d %s", path, got.code, got.body)
		}
		if got := owner.send("GET", c.path(path), ""); got.code != 404 {
			t.Errorf("%s in a cluster: %d %s", path, got.code, got.body)
		}
		// Owners can impersonate any user in their own cluster, but not elsewhere.
		for _, at := range []string{path, c.path(path)} {
			if got := owner.send("GET", at, "", "Impersonate-User", bob.info.Name); got.code == 200 {
				t.Errorf("as somebody else, %s: %d %s", at, got.code, got.body)
			}
		}
	}
	for _, q := range []string{"?limit=x", "?limit=-1", "?continue=x", "?continue=" + url.QueryEscape("eyJzIjotMX0")} {
		if code, body := bob.get("/services/reachableworkspaces"+q, nil); code != 400 {
			t.Errorf("%s: %d %s", q, code, body)
		}
	}
	far := base64.RawURLEncoding.EncodeToString([]byte(`{"p":"zz","c":"zz","s":9223372036854775807}`))
	if code, body := bob.get("/services/reachableworkspaces?continue="+far, nil); code != 200 {
		t.Errorf("to go on far beyond the end: %d %s", code, body)
	}
	if code, body := bob.get("/services/somethingelse", nil); code != 403 && code != 404 {
		t.Errorf("another service: %d %s", code, body)
	}
}

// explained requests the explanation of a workspace.
func (p person) explained(workspace string, query ...string) (*tenancyapi.WorkspaceExplanation, int, string) {
	p.t.Helper()
	q := url.Values{"workspace": {workspace}}
	for i := 0; i < len(query); i += 2 {
		q.Add(query[i], query[i+1])
	}
	e := &tenancyapi.WorkspaceExplanation{}
	code, body := p.get("/services/explainworkspace?"+q.Encode(), e)
	return e, code, body
}

func lastStep(e *tenancyapi.WorkspaceExplanation) tenancyapi.AccessStep {
	if n := len(e.Access.Steps); n > 0 {
		return e.Access.Steps[n-1]
	}
	return tenancyapi.AccessStep{}
}

func TestExplainWorkspace(t *testing.T) {
	t.Parallel()
	org := newTenant(t)
	team := org.workspace("team")
	path := string(org.name) + ":team"
	boss, reader, guest, stranger := org.person("boss"), org.person("reader"), org.person("guest"), org.person("stranger")
	team.bind("boss", "cluster-admin", boss.subject())
	org.bind("enters", authz.WorkspaceAccessRole, reader.subject())
	org.bind("reads", authz.TenancyReaderRole, reader.subject())
	team.bind("guest", authz.WorkspaceAccessRole, guest.subject())

	e, code, body := boss.explained(path)
	if code != 200 || e.Cluster != string(team.name) || e.Path != path || e.Phase != coreapi.PhaseReady || !e.Access.Allowed || e.Access.Request != "access /" {
		t.Errorf("the administrator is told %d %s", code, body)
	}
	e, _, body = boss.explained(path, "user", guest.info.Name, "resource", "secrets", "verb", "list", "namespace", "default")
	if e.Access.Allowed || lastStep(e).Name != "05-local" || e.Access.User != guest.info.Name || !strings.Contains(e.Access.Message, "role that allows it") {
		t.Errorf("about the guest he is told %s", body)
	}
	e, _, body = boss.explained(string(team.name), "user", "system:serviceaccount:default:default", "resource", "configmaps/status", "apiGroup", "x")
	if e.Access.Request != "get configmaps/status.x" || e.Access.Allowed {
		t.Errorf("about an account he is told %s", body)
	}
	// A user who may get the Workspace learns why they may not enter it, but nothing about
	// other users.
	e, code, body = reader.explained(path)
	if code != 200 || e.Access.Allowed || lastStep(e).Name != "02-content" || !strings.Contains(e.Access.Message, "share") {
		t.Errorf("who sees the Workspace is told %d %s", code, body)
	}
	if _, code, body = reader.explained(path, "user", guest.info.Name); code != 403 {
		t.Errorf("and about others: %d %s", code, body)
	}
	if _, code, body = reader.explained(path + ":none"); code != 403 {
		t.Errorf("about what may be below: %d %s", code, body)
	}
	if _, code, body = reader.explained(string(org.name) + ":none"); code != 404 {
		t.Errorf("about one that is not there: %d %s", code, body)
	}
	// A guest may ask only about themselves.
	if e, code, body = guest.explained(path, "resource", "configmaps", "namespace", "default"); code != 200 || e.Access.Allowed || e.Obstacles != nil {
		t.Errorf("a guest is told %d %s", code, body)
	}
	if e, code, body = guest.explained(path, "path", "/api"); code != 200 || !e.Access.Allowed {
		t.Errorf("about discovery: %d %s", code, body)
	}
	// A user without rights gets the same response for all workspaces.
	var answers []string
	for _, at := range []string{path, string(team.name), string(org.name) + ":none", "zzzzzzzzzz", "system:admin"} {
		_, code, body := stranger.explained(at)
		if code != 403 {
			t.Errorf("a stranger asks about %s: %d %s", at, code, body)
		}
		answers = append(answers, strings.ReplaceAll(body, at, "X"))
	}
	if same := slices.Compact(answers); len(same) != 1 {
		t.Errorf("a stranger can tell: %q", same)
	}
	for _, q := range []string{"", "*", "a b"} {
		if _, code, body := boss.explained(q); code != 400 {
			t.Errorf("%q: %d %s", q, code, body)
		}
	}
}

// The obstacles of a deletion are named.
func TestExplainDeletion(t *testing.T) {
	t.Parallel()
	org := newTenant(t)
	team := org.workspace("team")
	team.content("kept", "example.com/hold")
	boss := org.person("boss")
	org.bind("boss", "cluster-admin", boss.subject())
	org.deleteWorkspace("team")
	org.says(tenancyapi.GroupVersion.WithResource("workspaces"), "team", "example.com/hold")
	e, code, body := boss.explained(string(org.name) + ":team")
	if code != 200 || !e.Deleting || len(e.Obstacles) == 0 || !strings.Contains(body, "example.com/hold") || !strings.Contains(body, "configmaps") {
		t.Errorf("%d %s", code, body)
	}
	team.letGo("kept")
	org.await(tenancyapi.GroupVersion.WithResource("workspaces"), "", "team", gone)
	if _, code, body = boss.explained(string(org.name) + ":team"); code != 404 {
		t.Errorf("when it is gone: %d %s", code, body)
	}
}

// onlyAllowed checks that exactly the wanted clusters let the person list secrets.
func (p person) onlyAllowed(ctx context.Context, among []*tenant, want ...*tenant) {
	p.t.Helper()
	var got []*tenant
	p.server.Store().Feed().Fresh(ctx) // allowed requests do not wait for the feed
	for _, c := range among {
		if _, err := p.kube(c).CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err == nil {
			got = append(got, c)
		}
	}
	if diff := cmp.Diff(namesOf(want...), namesOf(got...)); diff != "" {
		p.t.Errorf("%s lists secrets in: (-want +got)\n%s", p.info.Name, diff)
	}
}
