package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// equals are servers on one etcd, like several processes.
type equals struct {
	t    *testing.T
	etcd *etcdtest.Cluster
	all  []*server.Server
}

func startEquals(t *testing.T, n int, o etcdtest.Options) *equals {
	t.Helper()
	e := &equals{t: t, etcd: etcdtest.Start(t, o), all: make([]*server.Server, n)}
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range n { // concurrently, on an empty etcd
		starting.Go(func() { e.all[i], errs[i] = e.start() })
	}
	starting.Wait()
	for i, s := range e.all {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		t.Cleanup(s.Close)
	}
	return e
}

func (e *equals) start() (*server.Server, error) {
	return server.New(context.Background(), server.Config{
		Dir: e.t.TempDir(), Etcd: etcd.Config{Servers: e.etcd.Servers()}, ExternalURL: "https://kcp.example.com",
	})
}

func (e *equals) any() *server.Server { return e.all[rand.IntN(len(e.all))] }

func (e *equals) kube(s *server.Server, at string, u user.Info) kubernetes.Interface {
	e.t.Helper()
	return must(kubernetes.NewForConfig(s.InProcess(at, u)))(e.t)
}

func (e *equals) dynamic(s *server.Server, at string) dynamic.Interface {
	e.t.Helper()
	return must(dynamic.NewForConfig(s.InProcess(at, server.System())))(e.t)
}

func (e *equals) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// workspace creates a workspace and returns its cluster.
func (e *equals) workspace(s *server.Server, parent, name string) cluster.Name {
	e.t.Helper()
	ws := &unstructured.Unstructured{}
	ws.SetAPIVersion(tenancyapi.GroupVersion.String())
	ws.SetKind("Workspace")
	ws.SetName(name)
	made, err := e.dynamic(s, parent).Resource(workspaces).Create(e.t.Context(), ws, metav1.CreateOptions{})
	e.ok(err)
	if phase := text(made, "status", "phase"); phase != "Ready" {
		e.t.Fatalf("workspace %s is %s", name, phase)
	}
	return cluster.Name(text(made, "spec", "cluster"))
}

// A change that one server has acknowledged applies at all servers on its etcd.
func TestAtSeveralServers(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 2, etcdtest.Options{})
	for name, test := range map[string]func(*testing.T, *equals){
		"a role and its binding":   rightsBelowAreDecidedOnTogether,
		"bindings for descendants": descendantsAtSeveralServers,
		"changes":                  changesAtSeveralServers,
		"changes of definitions":   definitionChangesWhileServersWrite,
		"deletions":                deletedWhileServersCreate,
		"homes":                    homesAtSeveralServers,
		"inactive clusters":        inactiveAtSeveralServers,
		"limits of a tree":         treeLimitAtSeveralServers,
		"quota":                    quotaAtSeveralServers,
		"recreated workspaces":     recreatedAtSeveralServers,
		"tokens":                   tokensOfSeveralServers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &equals{t: t, etcd: e.etcd, all: slices.Clone(e.all)})
		})
	}
}

// A request to any server sees all changes that any other server has acknowledged.
func changesAtSeveralServers(t *testing.T, e *equals) {
	for i := range 20 {
		a, b := e.all[i%2], e.all[1-i%2]
		name := fmt.Sprint("team-", i)
		c := e.workspace(a, "root", name)
		at := []string{string(c), "root:" + name}[i/2%2]
		child := e.workspace(b, at, "below")
		e.ok(configMapIn(e.kube(a, string(child), server.System()), "default", "x"))

		e.ok(namespaceIn(e.kube(a, at, server.System()), "ns"))
		e.ok(configMapIn(e.kube(b, at, server.System()), "ns", "x"))
		list, err := e.kube(a, at, server.System()).CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
		e.ok(err)
		if !slices.ContainsFunc(list.Items, func(o corev1.ConfigMap) bool { return o.Name == "x" }) {
			t.Errorf("the config map is missing in a list of %d", len(list.Items))
		}

		alice := &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
		if err := configMapIn(e.kube(b, at, alice), "ns", "hers"); !apierrors.IsForbidden(err) {
			t.Errorf("without a role alice is answered %v", err)
		}
		_, err = e.kube(a, at, server.System()).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "alice"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "alice"}},
		}, metav1.CreateOptions{})
		e.ok(err)
		e.ok(configMapIn(e.kube(b, at, alice), "ns", "hers"))

		e.definitionThenObject(a, b, at)
	}
}

// definitionThenObject creates a definition at one server and an object at another.
func (e *equals) definitionThenObject(a, b *server.Server, at string) {
	e.t.Helper()
	anything := true
	crds := must(apiextensionsclient.NewForConfig(a.InProcess(at, server.System())))(e.t)
	_, err := crds.ApiextensionsV1().CustomResourceDefinitions().Create(e.t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ClusterScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything},
			}}},
		},
	}, metav1.CreateOptions{})
	e.ok(err)
	w := &unstructured.Unstructured{}
	w.SetAPIVersion("example.com/v1")
	w.SetKind("Widget")
	w.SetName("w")
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	_, err = e.dynamic(b, at).Resource(widgets).Create(e.t.Context(), w, metav1.CreateOptions{})
	e.ok(err)
	list, err := e.dynamic(a, at).Resource(widgets).List(e.t.Context(), metav1.ListOptions{})
	e.ok(err)
	if len(list.Items) != 1 {
		e.t.Errorf("%d widgets", len(list.Items))
	}
}

func namespaceIn(c kubernetes.Interface, name string) error {
	_, err := c.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

func configMapIn(c kubernetes.Interface, namespace, name string) error {
	_, err := c.CoreV1().ConfigMaps(namespace).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// The path of a workspace that is created again at one server leads to the new one at all.
func recreatedAtSeveralServers(t *testing.T, e *equals) {
	a, b := e.all[0], e.all[1]
	e.workspace(a, "root", "again")
	for i := range 5 {
		e.ok(configMapIn(e.kube(b, "root:again", server.System()), "default", fmt.Sprint("x", i)))
		e.ok(e.dynamic(a, "root").Resource(workspaces).Delete(t.Context(), "again", metav1.DeleteOptions{}))
		if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			_, err := e.dynamic(a, "root").Resource(workspaces).Get(ctx, "again", metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		}); err != nil {
			t.Fatal(err)
		}
		e.workspace(a, "root", "again")
	}
}

// A service account token from one server is valid at all servers, and is revoked at all.
func tokensOfSeveralServers(t *testing.T, e *equals) {
	a, b := e.all[0], e.all[1]
	c := string(e.workspace(a, "root", "tokens"))
	kube := e.kube(a, c, server.System())
	_, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "bot"}}, metav1.CreateOptions{})
	e.ok(err)
	request, err := e.kube(b, c, server.System()).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "bot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	e.ok(err)
	for _, s := range e.all {
		review, err := e.kube(s, c, server.System()).AuthenticationV1().TokenReviews().Create(t.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: request.Status.Token}}, metav1.CreateOptions{})
		e.ok(err)
		if !review.Status.Authenticated {
			t.Errorf("not accepted: %s", review.Status.Error)
		}
	}
	e.ok(kube.CoreV1().ServiceAccounts("default").Delete(t.Context(), "bot", metav1.DeleteOptions{}))
	review, err := e.kube(b, c, server.System()).AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: request.Status.Token}}, metav1.CreateOptions{})
	e.ok(err)
	if review.Status.Authenticated {
		t.Error("the token of a deleted account is accepted")
	}
}

// A workspace deleted at one server is deleted at all, whichever runs the loops. When that
// server stops, another runs the loops.
func TestLoopsOfSeveralServers(t *testing.T) {
	e := startEquals(t, 3, etcdtest.Options{})
	for len(e.all) > 0 {
		s := e.any()
		name := fmt.Sprint("w", len(e.all))
		c := e.workspace(s, "root", name)
		e.ok(configMapIn(e.kube(e.any(), string(c), server.System()), "default", "x"))
		e.ok(e.dynamic(e.any(), "root").Resource(workspaces).Delete(t.Context(), name, metav1.DeleteOptions{}))
		view := &tenant{t: t, any: e.dynamic(e.any(), "root")}
		view.await(workspaces, "", name, gone)
		if err := configMapIn(e.kube(e.any(), string(c), server.System()), "default", "y"); !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			t.Errorf("in a cluster that is gone: %v", err)
		}
		e.all[0].Close()
		e.all = e.all[1:]
	}
}

// Without etcd, requests get 503 to retry and no refusal. The server is live but not ready,
// and recovers when etcd is back.
func TestServerWithoutEtcd(t *testing.T) {
	t.Parallel() // it mostly waits
	e := startEquals(t, 1, etcdtest.Options{})
	s := e.all[0]
	c := string(e.workspace(s, "root", "w"))
	alice := &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
	get := func(at, path string, u user.Info) (int, string) {
		t.Helper()
		client := &http.Client{Transport: s.InProcess(at, u).Transport}
		req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kcp"+path, nil))(t)
		resp := must(client.Do(req))(t)
		e.ok(resp.Body.Close())
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	in := "/clusters/" + c
	if code, _ := get(c, in+"/api/v1/namespaces/default/configmaps", alice); code != http.StatusForbidden {
		t.Errorf("alice is answered %d", code)
	}
	e.etcd.Kill()
	for _, path := range []string{"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/kube-root-ca.crt", "/apis/nothing.example.com/v1/things"} {
		for _, u := range []user.Info{server.System(), alice} {
			if code, after := get(c, in+path, u); code != http.StatusServiceUnavailable || after == "" {
				t.Errorf("%s for %s: %d, Retry-After %q", path, u.GetName(), code, after)
			}
		}
	}
	if code, _ := get(c, "/clusters/root:nowhere/api", alice); code != http.StatusServiceUnavailable {
		t.Errorf("a path that may lead somewhere by now is answered %d", code)
	}
	err := configMapIn(e.kube(s, c, server.System()), "default", "x")
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a write is answered %v", err)
	}
	if err := workspaceIn(e, s, "w1"); !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a workspace is answered %v", err)
	}
	for path, want := range map[string]int{
		"/readyz": http.StatusInternalServerError, "/readyz/etcd": http.StatusInternalServerError, "/readyz?exclude=etcd": http.StatusOK,
		"/livez": http.StatusOK, "/livez/etcd": http.StatusInternalServerError, "/healthz/etcd": http.StatusInternalServerError,
	} {
		if code, _ := get("root", path, server.System()); code != want {
			t.Errorf("%s is %d, want %d", path, code, want)
		}
	}
	e.etcd.Start()
	for code := 0; code != http.StatusOK; {
		code, _ = get("root", "/readyz", server.System())
	}
	e.ok(configMapIn(e.kube(s, c, server.System()), "default", "x"))
	if code, _ := get(c, in+"/api/v1/namespaces/default/configmaps", alice); code != http.StatusForbidden {
		t.Errorf("alice is answered %d", code)
	}
	e.workspace(s, "root", "w2")
}

// Without a quorum, the creation of a workspace fails like other writes. The error names etcd
// without its addresses.
func TestServerWithoutQuorum(t *testing.T) {
	t.Parallel() // it mostly waits
	e := startEquals(t, 1, etcdtest.Options{Members: 3})
	s := e.all[0]
	for _, m := range e.etcd.Members[1:] {
		m.Kill()
	}
	for range 3 {
		for what, err := range map[string]error{
			"a workspace": workspaceIn(e, s, "w"), "a config map": configMapIn(e.kube(s, "root", server.System()), "default", "x"),
		} {
			if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "etcd") || strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("%s is answered %v", what, err)
			}
		}
	}
}

// workspaceIn creates a workspace in root.
func workspaceIn(e *equals, s *server.Server, name string) error {
	ws := &unstructured.Unstructured{}
	ws.SetAPIVersion(tenancyapi.GroupVersion.String())
	ws.SetKind("Workspace")
	ws.SetName(name)
	_, err := e.dynamic(s, "root").Resource(workspaces).Create(e.t.Context(), ws, metav1.CreateOptions{})
	return err
}

// Workspaces that are created, filled and deleted concurrently at random servers, also below
// workspaces in deletion, are complete or deleted in the end.
func TestChaosAtSeveralServers(t *testing.T) {
	e := startEquals(t, 2, etcdtest.Options{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const tenants, rounds = 6, 25
	var all sync.WaitGroup
	alive := make([]map[string]bool, tenants) // what each tenant has created below its own workspace
	for i := range tenants {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		alive[i] = map[string]bool{}
		parent := fmt.Sprint("tenant-", i)
		e.workspace(e.any(), "root", parent)
		all.Go(func() {
			for range rounds {
				name := fmt.Sprint("w", r.IntN(4))
				if err := e.chaos(r, "root:"+parent, name, alive[i]); err != nil {
					t.Errorf("%s:%s: %v", parent, name, err)
				}
			}
		})
	}
	all.Wait()
	for i := range tenants {
		parent := fmt.Sprint("root:tenant-", i)
		for name := range 4 {
			name := fmt.Sprint("w", name)
			view := &tenant{t: t, any: e.dynamic(e.any(), parent)}
			if !alive[i][name] {
				view.await(workspaces, "", name, gone)
				continue
			}
			view.await(workspaces, "", name, func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
			for _, s := range e.all {
				if _, err := e.kube(s, parent+":"+name, server.System()).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
					t.Errorf("%s:%s is not whole: %v", parent, name, err)
				}
			}
		}
	}
	for _, s := range e.all { // at the same revision
		s.Store().Feed().Fresh(t.Context())
	}
	if a, b := e.all[0].Store().Feed().Ledger().Clusters(), e.all[1].Store().Feed().Ledger().Clusters(); a != b {
		t.Errorf("the servers know of %d and %d logical clusters", a, b)
	}
}

// chaos makes a random operation on a workspace at a random server, and records whether it
// exists. One goroutine at a time works below a parent.
func (e *equals) chaos(r *rand.Rand, parent, name string, alive map[string]bool) error {
	s := e.all[r.IntN(len(e.all))]
	client, err := dynamic.NewForConfig(s.InProcess(parent, server.System()))
	if err != nil {
		return err
	}
	ws := &unstructured.Unstructured{}
	ws.SetAPIVersion(tenancyapi.GroupVersion.String())
	ws.SetKind("Workspace")
	ws.SetName(name)
	switch {
	case !alive[name]:
		_, err = client.Resource(workspaces).Create(e.t.Context(), ws, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // its deletion is not finished
		}
		alive[name] = err == nil
		return err
	case r.IntN(2) == 0:
		alive[name] = false
		// Another server creates a workspace below it at the same time. It is complete and
		// deleted with its parent, or refused.
		var below sync.WaitGroup
		other := e.all[r.IntN(len(e.all))]
		below.Go(func() {
			inner, err := dynamic.NewForConfig(other.InProcess(parent+":"+name, server.System()))
			child := ws.DeepCopy()
			child.SetName("below")
			if err == nil {
				_, err = inner.Resource(workspaces).Create(e.t.Context(), child, metav1.CreateOptions{})
			}
			if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
				e.t.Errorf("below %s:%s: %v", parent, name, err)
			}
		})
		err = client.Resource(workspaces).Delete(e.t.Context(), name, metav1.DeleteOptions{})
		below.Wait()
		return err
	default:
		kube, err := kubernetes.NewForConfig(s.InProcess(parent+":"+name, server.System()))
		if err != nil {
			return err
		}
		err = configMapIn(kube, "default", fmt.Sprintf("x%d", r.Uint64()))
		if apierrors.IsNotFound(err) { // a server that lags behind has taken the path for that of the deleted namesake
			if err = s.Store().Feed().CatchUp(e.t.Context()); err == nil {
				err = configMapIn(kube, "default", fmt.Sprintf("x%d", r.Uint64()))
			}
		}
		return err
	}
}
