package server_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/tenancy/home"
)

const homePath = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/~"

// homeOf returns the home of a user and creates it if necessary.
func homeOf(t *testing.T, s *running, u user.Info) (*tenant, *unstructured.Unstructured) {
	t.Helper()
	root := must(dynamic.NewForConfig(s.InProcess("root", u)))(t)
	ws, err := root.Resource(workspaces).Get(t.Context(), "~", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%q: %v", u.GetName(), err)
	}
	return at(t, s, clusterOf(ws), u), ws
}

func sharedServer(t *testing.T) *running {
	t.Helper()
	return must(shared())(t)
}

// The home of a user exists and is ready when the first get returns.
func TestHomeWorkspace(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	home, ws := homeOf(t, s, as("homebody"))
	if want := cluster.Home("homebody"); home.name != want {
		t.Errorf("it is %s, want %s", home.name, want)
	}
	want := map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
		"metadata": map[string]any{"name": "cluster", "annotations": map[string]any{"kcp.io/cluster": "root"}, "creationTimestamp": text(ws, "metadata", "creationTimestamp")},
		"spec": map[string]any{
			"cluster": string(home.name), "URL": s.url + "/clusters/" + string(home.name), "type": map[string]any{"name": "home", "path": "root"},
		},
	}
	got := ws.DeepCopy().Object
	delete(got, "status")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if phase := text(ws, "status", "phase"); phase != "Ready" {
		t.Errorf("it is %s", phase)
	}
	// Usable without a wait.
	home.content("mine")
	below := home.workspace("below")
	for path, name := range map[string]cluster.Name{"user:homebody": home.name, "user:homebody:below": below.name, string(home.name) + ":below": below.name} {
		o := must(at(t, s, cluster.Name(path), as("homebody")).any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
		if o.GetAnnotations()["kcp.io/cluster"] != string(name) || strings.HasPrefix(path, "user:") && o.GetAnnotations()["kcp.io/path"] != path {
			t.Errorf("%s leads to %v", path, o.GetAnnotations())
		}
	}
	l := must(home.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
	if l.GetAnnotations()["internal.tenancy.kcp.io/type"] != "root:home" || text(l, "spec", "directlyDeletable") != "true" ||
		text(l, "spec", "createdBy", "username") != "homebody" || text(l, "status", "URL") != text(ws, "spec", "URL") {
		t.Errorf("its logical cluster is %v", l.Object)
	}
	admin := must(home.kube.RbacV1().ClusterRoleBindings().Get(t.Context(), "workspace-admin", metav1.GetOptions{}))(t)
	if diff := cmp.Diff([]rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "homebody"}}, admin.Subjects); diff != "" {
		t.Error(diff)
	}
	for _, ns := range []string{"default", "kube-system"} {
		if _, err := home.kube.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if again, _ := homeOf(t, s, as("homebody")); again.name != home.name {
		t.Errorf("the second time it is %s", again.name)
	}
	stranger := at(t, s, home.name, as("stranger"))
	if _, err := stranger.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "mine", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a stranger is answered %v", err)
	}
}

// Clients compare the full text of the refusal.
func refusedHome(name string) string {
	return fmt.Sprintf(`workspaces.tenancy.kcp.io "~" is forbidden: User %q cannot create resource "workspaces" in API group "tenancy.kcp.io" at the cluster scope: workspace access not permitted`, name)
}

func TestHomeOfAnonymous(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	got := a.anonymous().send("GET", homePath, "")
	if message := text(parsed(t, got), "message"); got.code != http.StatusForbidden || message != refusedHome("system:anonymous") {
		t.Errorf("%d %s", got.code, message)
	}
	if got := a.visitor("unknown", "no-token").send("GET", homePath, ""); got.code != http.StatusUnauthorized {
		t.Errorf("with an unknown token: %d %s", got.code, got.body)
	}
}

// Homes can be limited to some groups, or to no user.
func TestHomesOfGroups(t *testing.T) {
	t.Parallel()
	tokens := file(t, "tokens.csv", []byte("member,member,1,\"makers\"\nother,other,2\n"))
	s := startHomes(t, home.Options{CreatorGroups: []string{"makers"}}, tokens)
	c := s.tenant(t)
	if got := c.visitor("member", "member").send("GET", homePath, ""); !got.ok() {
		t.Errorf("a member: %d %s", got.code, got.body)
	}
	got := c.visitor("other", "other").send("GET", homePath, "")
	if message := text(parsed(t, got), "message"); got.code != http.StatusForbidden || message != refusedHome("other") {
		t.Errorf("another: %d %s", got.code, message)
	}
	off := startHomes(t, home.Options{Disabled: true}, tokens).tenant(t)
	if got := off.visitor("member", "member").send("GET", homePath, ""); got.code != http.StatusNotFound {
		t.Errorf("where there are none: %d %s", got.code, got.body)
	}
}

func startHomes(t *testing.T, h home.Options, tokens string) *running {
	t.Helper()
	return startConfigured(t, func(c *server.Config) {
		c.Homes = h
		c.Access.Authentication = authn.DefaultOptions()
		c.Access.Authentication.TokenFile.TokenFile = tokens
	})
}

// Users with unusual names have their own homes.
func TestHomesOfOddNames(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	seen := map[cluster.Name]string{}
	for _, name := range []string{
		"Alice", "alice@example.com", "oidc:alice", "a b", "*", "~", "..", "../root", "root", "x/y", "system:admin", "名前", "%2e%2e", "new\nline", "\x00",
		"system:serviceaccounts", "-", "user:alice", "'; drop table", strings.Repeat("long", 2000), "<script>", "a\u202eb",
	} {
		home, ws := homeOf(t, s, as(name))
		if other, taken := seen[home.name]; taken {
			t.Errorf("%.40q and %.40q have one home", name, other)
		}
		seen[home.name] = name
		home.content("mine")
		below := home.workspace("below")
		at1 := text(must(below.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t), "metadata", "annotations", "kcp.io/path")
		if _, err := cluster.ParsePath(at1); err != nil || text(ws, "status", "phase") != "Ready" {
			t.Errorf("%.40q: the workspace below is at %q: %v", name, at1, err)
		}
		if strings.ContainsAny(name, ":/\x00") || name == ".." {
			continue // such a name cannot be part of a path
		}
		config := s.InProcess("x", as(name))
		config.Host = "http://kcp/clusters/user:" + url.PathEscape(name) + ":below"
		if _, err := must(kubernetes.NewForConfig(config))(t).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Errorf("%.40q by path: %v", name, err)
		}
	}
	root := must(dynamic.NewForConfig(s.InProcess("root", as("not\xffutf8"))))(t)
	if _, err := root.Resource(workspaces).Get(t.Context(), "~", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a name that cannot be stored: %v", err)
	}
}

// Service accounts of the same name in two clusters have different homes.
func TestHomesOfServiceAccounts(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	homes := map[string]bool{}
	for _, c := range []*tenant{a, b} {
		owner := c.owner()
		got := owner.send("GET", homePath, "")
		home := text(parsed(t, got), "spec", "cluster")
		if want := cluster.Home("system:kcp:serviceaccount:" + string(c.name) + ":default:owner"); home != string(want) {
			t.Errorf("the home is %s, want %s: %s", home, want, got.body)
		}
		if got := owner.send("GET", "/clusters/"+home+"/api/v1/namespaces/default/secrets", ""); !got.ok() {
			t.Errorf("in its home: %d %s", got.code, got.body)
		}
		for other := range homes {
			if got := owner.send("GET", "/clusters/"+other+"/api/v1/namespaces/default/secrets", ""); got.code != http.StatusForbidden {
				t.Errorf("in the other's home: %d %s", got.code, got.body)
			}
		}
		homes[home] = true
	}
}

// Only a plain get creates a home.
func TestOnlyGetMakesHomes(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	name := cluster.Home("nobody")
	v := newTenant(t).nobody()
	body := `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"~"}}`
	for _, r := range [][2]string{
		{"PUT", homePath}, {"DELETE", homePath}, {"PATCH", homePath}, {"POST", strings.TrimSuffix(homePath, "/~")}, {"HEAD", homePath + "/status"}, {"GET", homePath + "/status"},
		{"GET", strings.Replace(homePath, "v1alpha1", "v1", 1)}, {"GET", strings.Replace(homePath, "tenancy", "core", 1)},
		{"GET", strings.Replace(homePath, "root", string(name), 1)}, {"GET", "/clusters/*" + strings.TrimPrefix(homePath, "/clusters/root")},
		{"GET", strings.TrimPrefix(homePath, "/clusters/root")}, {"GET", "/clusters/user:nobody/api/v1/namespaces"}, {"GET", "/clusters/user:nobody:x/api/v1/namespaces"},
	} {
		if got := v.send(r[0], r[1], body, "Content-Type", "application/json"); got.broken() || got.ok() {
			t.Errorf("%s %s: %d %s", r[0], r[1], got.code, got.body)
		}
	}
	system := at(t, s, cluster.All, server.System())
	for _, l := range must(system.any.Resource(logicalClusters).List(t.Context(), metav1.ListOptions{}))(t).Items {
		if cluster.Of(&l) == name {
			t.Error("a home was made")
		}
	}
}

// A home that its owner has deleted is created again, empty, by the next get.
func TestHomeComesBackEmpty(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	u := as("mover")
	home, _ := homeOf(t, s, u)
	old := must(home.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
	home.content("treasure", hold)
	home.allow("guest")
	home.workspace("below")
	token := home.token("default")
	guest := at(t, s, home.name, as("guest"))
	if err := at(t, s, home.name, as("stranger")).any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a stranger who deletes it is answered %v", err)
	}
	if err := home.any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got := rawHome(t, s, u)
	if got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" || strings.TrimSpace(got.body) != "Creating the home workspace" ||
		!strings.HasPrefix(got.header.Get("Content-Type"), "text/plain") {
		t.Errorf("while it ends: %d %v %s", got.code, got.header, got.body)
	}
	home.letGo("treasure")
	at(t, s, home.name, server.System()).await(logicalClusters, "", "cluster", gone)

	again, ws := homeOf(t, s, u)
	if again.name != home.name || text(ws, "status", "phase") != "Ready" {
		t.Errorf("it comes back as %v", ws.Object)
	}
	fresh := must(again.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
	if fresh.GetUID() == old.GetUID() {
		t.Error("it is the old one")
	}
	if list := must(again.kube.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 2 {
		t.Errorf("it has the config maps %v", list.Items)
	}
	if list := must(again.any.Resource(workspaces).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 0 {
		t.Errorf("it has the workspaces %v", list.Items)
	}
	if _, err := guest.kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the guest of before is answered %v", err)
	}
	if got := again.visitor("account", token).send("GET", again.path("/api/v1/namespaces"), ""); got.code != http.StatusUnauthorized {
		t.Errorf("the token of before is answered %d %s", got.code, got.body)
	}
	again.content("treasure") // the same name as before
}

// rawHome gets the home without retries.
func rawHome(t *testing.T, s *running, u user.Info) answer {
	t.Helper()
	req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kcp"+homePath, nil))(t)
	resp := must((&http.Client{Transport: s.InProcess("root", u).Transport}).Do(req))(t)
	defer resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(must(io.ReadAll(resp.Body))(t))}
}

// Several servers that create a home concurrently create one. It is usable at each of them
// without delay.
func homesAtSeveralServers(t *testing.T, e *equals) {
	for i := range 5 {
		u := as(fmt.Sprint("user-", i))
		var asking sync.WaitGroup
		uids := make([]string, 10)
		for n := range uids {
			s := e.all[n%2]
			asking.Go(func() {
				root, err := dynamic.NewForConfig(s.InProcess("root", u))
				if err != nil {
					t.Error(err)
					return
				}
				ws, err := root.Resource(workspaces).Get(t.Context(), "~", metav1.GetOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				in, err := dynamic.NewForConfig(s.InProcess(string(clusterOf(ws)), u))
				if err != nil {
					t.Error(err)
					return
				}
				l, err := in.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				uids[n] = string(l.GetUID())
			})
		}
		asking.Wait()
		for _, uid := range uids {
			if uid == "" || uid != uids[0] {
				t.Errorf("%s has the homes %q", u.GetName(), uids)
				break
			}
		}
		e.ok(configMapIn(e.kube(e.all[i%2], string(cluster.Home(u.GetName())), u), "kube-system", "x"))
	}
}

// A watch in a deleted home sees the deletions, and the new objects when the home exists
// again.
func TestWatchOverTheEndOfAHome(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	u := as("watcher")
	home, _ := homeOf(t, s, u)
	w := must(home.kube.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	home.content("old")
	if err := home.any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	at(t, s, home.name, server.System()).await(logicalClusters, "", "cluster", gone)
	homeOf(t, s, u)
	there := map[string]bool{}
	for e := range w.ResultChan() {
		m, ok := e.Object.(*corev1.ConfigMap)
		if !ok {
			break
		}
		if there[m.Name] = e.Type != watch.Deleted; m.Name == "kube-root-ca.crt" && e.Type == watch.Added && !there["old"] && len(there) > 1 {
			return
		}
	}
	t.Errorf("it sees %v", there)
}
