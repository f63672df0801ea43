package kinds_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/kcptest"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// deploy creates a Deployment in a cluster.
func deploy(t *testing.T, c *kcptest.Cluster, name string) {
	t.Helper()
	if _, err := typed(t, c).AppsV1().Deployments("default").Create(t.Context(), deployment(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// identity returns the identity of the export of a provider.
func identity(t *testing.T, p *kcptest.Cluster) string {
	t.Helper()
	e, err := p.Dynamic.Resource(exports).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := unstructured.NestedString(e.Object, "status", "identityHash")
	return id
}

// view returns a client of the view of a provider for a cluster, or "*".
func view(t *testing.T, p *kcptest.Cluster, in string, as ...user.Info) dynamic.Interface {
	t.Helper()
	config := rest.CopyConfig(p.Config)
	if len(as) > 0 {
		var err error
		if config, err = p.Server.As(p.Name, as[0]); err != nil {
			t.Fatal(err)
		}
	}
	config.Host = p.Server.URL() + "/services/apiexport/" + p.Name + "/kubernetes/clusters/" + in
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// namesIn returns "cluster/name" of all items, sorted.
func namesIn(list *unstructured.UnstructuredList) []string {
	var all []string
	if list != nil {
		for _, o := range list.Items {
			all = append(all, o.GetAnnotations()["kcp.io/cluster"]+"/"+o.GetName())
		}
	}
	slices.Sort(all)
	return all
}

// Two providers of one kind do not see each other's consumers, in any way that the wire has.
func TestProvidersAreIsolated(t *testing.T) {
	t.Parallel()
	one, two := provider(t, "deployments.apps", "services"), provider(t, "deployments.apps")
	a, b, c := consumer(t, one), consumer(t, one), consumer(t, two)
	for i, in := range []*kcptest.Cluster{a, b, c} {
		deploy(t, in, fmt.Sprint("web-", i))
	}
	want := []string{a.Name + "/web-0", b.Name + "/web-1"}
	slices.Sort(want)
	got, err := view(t, one, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
	if err != nil || !slices.Equal(namesIn(got), want) {
		t.Errorf("the view lists %s, %v; want %s", namesIn(got), err, want)
	}
	if got.GetKind() != "DeploymentList" {
		t.Errorf("the list is a %s", got.GetKind())
	}
	if got, err := view(t, one, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=web-1"}); err != nil || !slices.Equal(namesIn(got), []string{b.Name + "/web-1"}) {
		t.Errorf("by name: %s, %v", namesIn(got), err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "lb"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := typed(t, b).CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := view(t, one, "*").Resource(corev1.SchemeGroupVersion.WithResource("services")).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.type=LoadBalancer"}); err != nil || !slices.Equal(namesIn(got), []string{b.Name + "/lb"}) {
		t.Errorf("by type: %s, %v", namesIn(got), err)
	}
	if got, err := view(t, two, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{}); err != nil || !slices.Equal(namesIn(got), []string{c.Name + "/web-2"}) {
		t.Errorf("the other view lists %s, %v", namesIn(got), err)
	}
	// The view of one provider has neither the consumers nor the kinds of the other.
	if got, err := view(t, two, a.Name).Resource(deployments).Namespace("default").Get(t.Context(), "web-0", metav1.GetOptions{}); err == nil {
		t.Errorf("provider two reads %s", text(got))
	}
	if got, err := view(t, two, "*").Resource(corev1.SchemeGroupVersion.WithResource("services")).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Errorf("provider two lists services: %s", namesIn(got))
	}
	// An identity in the URL gives nothing that the cluster has not bound.
	for _, in := range []*kcptest.Cluster{a, two} {
		if got, err := get(t, in, "/apis/apps/v1/namespaces/default/deployments:"+identity(t, two)); !apierrors.IsNotFound(err) {
			t.Errorf("%s by identity: %s, %v", in.Name, got, err)
		}
	}
	if got, err := get(t, a, "/apis/apps/v1/namespaces/default/deployments:"+identity(t, one)); err != nil || !strings.Contains(got, "web-0") {
		t.Errorf("by its own identity: %s, %v", got, err)
	}
	// Nobody else may use the view.
	if got, err := view(t, one, "*", &user.DefaultInfo{Name: "eve", Groups: []string{user.AllAuthenticated}}).Resource(deployments).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("eve lists %s, %v", namesIn(got), err)
	}
	// The operator reads all clusters with the identity.
	everywhere, err := one.Server.As("*", &user.DefaultInfo{Name: "operator", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	if err != nil {
		t.Fatal(err)
	}
	all := &kcptest.Cluster{Config: everywhere}
	if got, err := get(t, all, "/apis/apps/v1/deployments:"+identity(t, one)); err != nil || strings.Count(got, `"kind":"DeploymentList"`) != 1 || !strings.Contains(got, "web-1") || strings.Contains(got, "web-2") {
		t.Errorf("all clusters by identity: %.300s, %v", got, err)
	}
}

// The view of a provider follows consumers that come, change and go.
func TestViewWatches(t *testing.T) {
	t.Parallel()
	p := provider(t, "deployments.apps")
	a := consumer(t, p)
	deploy(t, a, "first")
	list, err := view(t, p, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := view(t, p, "*").Resource(deployments).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func(kind watch.EventType, of *kcptest.Cluster, name string) *unstructured.Unstructured {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			u, _ := e.Object.(*unstructured.Unstructured)
			if u == nil || e.Type != kind || u.GetName() != name || u.GetAnnotations()["kcp.io/cluster"] != of.Name || u.GetKind() != "Deployment" {
				t.Fatalf("%s %s, want %s of %s in %s", e.Type, text(e.Object), kind, name, of.Name)
			}
			return u
		case <-time.After(kcptest.DefaultTimeout):
			t.Fatalf("no %s of %s", kind, name)
			return nil
		}
	}
	b := consumer(t, p)
	deploy(t, b, "second")
	next(watch.Added, b, "second")
	// The provider writes the status; its consumer sees it.
	in := view(t, p, b.Name).Resource(deployments).Namespace("default")
	if _, err := in.Patch(t.Context(), "second", "application/merge-patch+json", []byte(`{"status":{"replicas":1,"readyReplicas":1}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	next(watch.Modified, b, "second")
	if got, err := typed(t, b).AppsV1().Deployments("default").Get(t.Context(), "second", metav1.GetOptions{}); err != nil || got.Status.ReadyReplicas != 1 {
		t.Errorf("the consumer reads %s, %v", text(got), err)
	}
	unbind(t, a)
	next(watch.Deleted, a, "first")
}

// Names conflict between bindings, and between bindings and definitions, and the first one stays.
func TestConflicts(t *testing.T) {
	t.Parallel()
	one, two := provider(t, "deployments.apps"), provider(t, "deployments.apps", "services")
	c := consumer(t, one)
	b, err := c.Dynamic.Resource(bindings).Create(t.Context(), binding("another", two), metav1.CreateOptions{})
	if err != nil || !strings.Contains(text(b.Object["status"]), "NamingConflicts") || !strings.Contains(text(b.Object["status"]), "deployments.apps is bound by APIBinding kubernetes") {
		t.Errorf("bound twice: %s, %v", text(b), err)
	}
	if _, err := get(t, c, "/api/v1/services"); !apierrors.IsNotFound(err) {
		t.Errorf("a part of the export is served: %v", err)
	}
	own := crd("deployments")
	got, err := c.Dynamic.Resource(definitions).Create(t.Context(), own, metav1.CreateOptions{})
	if err == nil && strings.Contains(text(got.Object["status"]), `"type":"Established","status":"True"`) {
		t.Errorf("a definition of a bound kind: %s", text(got.Object["status"]))
	}
	deploy(t, c, "web") // still the bound kind
	// Where nothing is bound, such a definition is possible, and then the binding conflicts.
	free := universe.New(t)
	if _, err := free.Dynamic.Resource(definitions).Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err = free.Dynamic.Resource(bindings).Create(t.Context(), binding("kubernetes", one), metav1.CreateOptions{})
	if err != nil || !strings.Contains(text(b.Object["status"]), "NamingConflicts") || !strings.Contains(text(b.Object["status"]), "CustomResourceDefinition deployments.apps") {
		t.Errorf("bound over a definition: %s, %v", text(b), err)
	}
	if _, err := free.Dynamic.Resource(deployments).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "own"}, "spec": map[string]any{"anything": "goes"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an object of the definition: %v", err)
	}
}

// crd returns a definition in the group apps that has the names of Deployments.
func crd(plural string) *unstructured.Unstructured {
	var u unstructured.Unstructured
	_ = json.Unmarshal([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"`+plural+`.apps","annotations":{"api-approved.kubernetes.io":"unapproved"}},
		"spec":{"group":"apps","scope":"Namespaced","names":{"plural":"`+plural+`","singular":"deployment","kind":"Deployment","listKind":"DeploymentList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`), &u.Object)
	return &u
}

// A binding that ends takes no new objects, and waits for those with finalizers.
func TestUnbinding(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, "deployments.apps"))
	web := typed(t, c).AppsV1().Deployments("default")
	held := deployment("held")
	held.Finalizers = []string{"example.com/hold"}
	if _, err := web.Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Dynamic.Resource(bindings).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		got, err := web.Get(t.Context(), "held", metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp == nil {
			return fmt.Errorf("it is not being deleted: %v", err)
		}
		return nil
	})
	if _, err := web.Create(t.Context(), deployment("late"), metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("created while the binding is being deleted: %v", err)
	}
	if _, err := web.Patch(t.Context(), "late", "application/apply-patch+yaml", []byte(text(map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "late"}, "spec": deployment("late").Spec})), metav1.PatchOptions{FieldManager: "x"}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("applied while the binding is being deleted: %v", err)
	}
	if _, err := web.Patch(t.Context(), "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, err := c.Dynamic.Resource(bindings).Get(t.Context(), "kubernetes", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the binding is still there: %v", err)
		}
		return nil
	})
}

// The provider reads claimed objects of a native kind of another export, where this is accepted.
func TestClaims(t *testing.T) {
	t.Parallel()
	compute := provider(t, "deployments.apps")
	p := universe.New(t)
	claiming := export("kubernetes")
	claiming.Object["spec"] = map[string]any{"permissionClaims": []any{map[string]any{"group": "apps", "resource": "deployments", "identityHash": identity(t, compute), "verbs": []any{"get", "list", "watch"}}}}
	if _, err := p.Dynamic.Resource(exports).Create(t.Context(), claiming, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accepting, other := consumer(t, compute), consumer(t, compute)
	deploy(t, accepting, "shown")
	deploy(t, other, "hidden")
	for in, state := range map[*kcptest.Cluster]string{accepting: "Accepted", other: "Rejected"} {
		b := binding("claims", p)
		b.Object["spec"].(map[string]any)["permissionClaims"] = []any{map[string]any{
			"group": "apps", "resource": "deployments", "identityHash": identity(t, compute), "verbs": []any{"get", "list", "watch"}, "state": state, "selector": map[string]any{"matchAll": true},
		}}
		if _, err := in.Dynamic.Resource(bindings).Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		got, err := view(t, p, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
		if err != nil || !slices.Equal(namesIn(got), []string{accepting.Name + "/shown"}) {
			return fmt.Errorf("the view lists %s, %v", namesIn(got), err)
		}
		return nil
	})
	if err := view(t, p, accepting.Name).Resource(deployments).Namespace("default").Delete(t.Context(), "shown", metav1.DeleteOptions{}); err == nil {
		t.Error("a provider deleted what it may only read")
	}
}

// Where nothing is bound, the extension takes no goroutine. Consumers and their objects take none
// either.
func TestCosts(t *testing.T) {
	plain := func() *kcptest.Universe { return &kcptest.Universe{Server: &kcp.Server{NoSync: true}} }
	run(t, plain(), func() {}) // libraries start goroutines of their own with the first server
	without, left := run(t, plain(), func() {})
	u := &kcptest.Universe{Server: &kcp.Server{NoSync: true, Extensions: universe.Server.Extensions}}
	with, _ := run(t, u, func() {
		of := func() *kcptest.Cluster { return u.New(t) }
		p := of()
		if _, err := p.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", everything()...), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c := of()
		bind(t, c, p)
		deploy(t, c, "web")
		one := settled(t)
		for range 30 {
			c := of()
			bind(t, c, p)
			deploy(t, c, "web")
		}
		if many := settled(t); many > one+5 { // connections of the test, and requests that end
			t.Errorf("%d goroutines with 31 consumers, %d with one", many, one)
		}
	})
	if with > without {
		t.Errorf("%d goroutines with the extension, %d without", with, without)
	}
	eventually(t, func() error { // upstream's handlers of definitions end a moment after Close
		if now := runtime.NumGoroutine(); now > left {
			return fmt.Errorf("%d goroutines after Close, %d after that of a server without the extension", now, left)
		}
		return nil
	})
}

// run starts a server, calls use, and stops the server. It returns the number of goroutines before use
// and after the end.
func run(t *testing.T, u *kcptest.Universe, use func()) (idle, left int) {
	t.Helper()
	if _, err := u.Start(); err != nil {
		t.Fatal(err)
	}
	idle = settled(t)
	use()
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	return idle, settled(t)
}

// settled returns the number of goroutines when it does not change any more.
func settled(t *testing.T) int {
	t.Helper()
	last, times := -1, 0
	eventually(t, func() error {
		now := runtime.NumGoroutine()
		if times++; now != last {
			last, times = now, 0
		}
		if times < 15 {
			return fmt.Errorf("there are %d goroutines, and their number changes", now)
		}
		return nil
	})
	return last
}
