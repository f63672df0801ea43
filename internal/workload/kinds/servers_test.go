package kinds_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/kcptest"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// at returns a cluster of a server by its name.
func at(t *testing.T, srv *kcp.Server, name string) *kcptest.Cluster {
	t.Helper()
	config, err := srv.Cluster(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &kcptest.Cluster{Name: name, Server: srv, Config: config, Dynamic: client}
}

func started(t *testing.T, srv *kcp.Server) *kcp.Server {
	t.Helper()
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

// Bindings and objects outlive the process, and a start without the extension: then the kinds are
// not served, and nothing is lost.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, extensions := range [][]kcp.Extension{universe.Server.Extensions, nil, universe.Server.Extensions} {
		srv := &kcp.Server{Dir: dir, NoSync: true, Extensions: extensions}
		if err := srv.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		p, c := at(t, srv, "provider"), at(t, srv, "consumer")
		if i == 0 {
			if _, err := p.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", "deployments.apps"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			bind(t, c, p)
			deploy(t, c, "kept")
		}
		list, err := typed(t, c).AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
		switch {
		case extensions == nil && !apierrors.IsNotFound(err):
			t.Errorf("without the extension: %s, %v", text(list), err)
		case extensions != nil && (err != nil || len(list.Items) != 1 || list.Items[0].Name != "kept"):
			t.Errorf("start %d: %s, %v", i, text(list), err)
		}
		if extensions == nil { // an export can still be changed, and another one does not bind
			if _, err := p.Dynamic.Resource(exports).Patch(t.Context(), "kubernetes", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
				t.Errorf("changed without the extension: %v", err)
			}
			b, err := at(t, srv, "late").Dynamic.Resource(bindings).Create(t.Context(), binding("kubernetes", p), metav1.CreateOptions{})
			if err != nil || !strings.Contains(text(b.Object["status"]), "this server has no native kinds to export") {
				t.Errorf("bound without the extension: %s, %v", text(b), err)
			}
		}
		if i == 2 {
			eventually(t, func() error { return second(get(t, at(t, srv, "late"), "/apis/apps/v1/deployments")) })
			unbind(t, c)
		}
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The first requests of a server build the registries of bound kinds and the documents, at the same
// time.
func TestOpenAPIBuiltAtOnce(t *testing.T) {
	t.Parallel()
	srv := started(t, &kcp.Server{NoSync: true, Extensions: universe.Server.Extensions})
	p, c, other := at(t, srv, "provider"), at(t, srv, "consumer"), at(t, srv, "other")
	if _, err := p.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", everything()...), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(t, c, p)
	var all sync.WaitGroup
	for _, path := range []string{"/apis/apps/v1/deployments", "/openapi/v3/apis/apps/v1", "/openapi/v3/apis/batch/v1", "/openapi/v3/api/v1", "/openapi/v2"} {
		for _, in := range []*kcptest.Cluster{c, other} {
			all.Go(func() {
				if _, err := get(t, in, path); err != nil && (in == c || !apierrors.IsNotFound(err)) {
					t.Errorf("%s of %s: %v", path, in.Name, err)
				}
			})
		}
	}
	all.Wait()
}

// A deleted cluster leaves nothing in the view of the provider.
func TestDeletedConsumer(t *testing.T) {
	t.Parallel()
	p := provider(t, "deployments.apps")
	c, other := consumer(t, p), consumer(t, p)
	deploy(t, c, "gone")
	deploy(t, other, "kept")
	if err := c.Server.Remove(t.Context(), c.Name); err != nil {
		t.Fatal(err)
	}
	got, err := view(t, p, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
	if err != nil || !slices.Equal(namesIn(got), []string{other.Name + "/kept"}) {
		t.Errorf("the view lists %s, %v", namesIn(got), err)
	}
}

// Informers of client-go, in protobuf, follow bound kinds.
func TestInformer(t *testing.T) {
	t.Parallel()
	c := consumer(t, provider(t, "deployments.apps", "services"))
	deploy(t, c, "before")
	factory := informers.NewSharedInformerFactory(typed(t, c), 0)
	informer := factory.Apps().V1().Deployments().Informer()
	seen := make(chan string, 16)
	tell := func(what string) func(any) {
		return func(o any) {
			if d, ok := o.(*appsv1.Deployment); ok {
				seen <- what + " " + d.Name
			}
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell("added"), DeleteFunc: tell("deleted"), UpdateFunc: func(_, o any) { tell("changed")(o) },
	}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	defer factory.Shutdown()
	defer close(stop)
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Errorf("the informer has %s, want %s", got, want)
			}
		case <-time.After(kcptest.DefaultTimeout):
			t.Fatalf("the informer has not %s", want)
		}
	}
	expect("added before")
	deploy(t, c, "after")
	expect("added after")
	if _, err := typed(t, c).AppsV1().Deployments("default").Patch(t.Context(), "after", types.StrategicMergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("changed after")
	unbind(t, c)
	gone := []string{<-seen, <-seen}
	slices.Sort(gone)
	if !slices.Equal(gone, []string{"deleted after", "deleted before"}) {
		t.Errorf("after unbinding: %s", gone)
	}
}

// An object that no registry would have stored harms neither other objects nor other consumers: a
// provider stored it, with a schema of its own, under the identity that the kind has now.
func TestForeignObjects(t *testing.T) {
	t.Parallel()
	p := universe.New(t)
	p.Apply(`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"v1.deployments.apps"},"spec":{"group":"apps","scope":"Namespaced",
		"names":{"plural":"deployments","singular":"deployment","kind":"Deployment","listKind":"DeploymentList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]}}`)
	own := export("kubernetes")
	own.Object["spec"] = map[string]any{"resources": []any{map[string]any{"group": "apps", "name": "deployments", "schema": "v1.deployments.apps", "storage": map[string]any{"crd": map[string]any{}}}}}
	if _, err := p.Dynamic.Resource(exports).Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := consumer(t, p)
	for name, spec := range map[string]any{"bad": "no object", "empty": map[string]any{}, "wrong": map[string]any{"replicas": "many"}} {
		_, err := before.Dynamic.Resource(deployments).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name}, "spec": spec,
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Dynamic.Resource(exports).Update(t.Context(), changed(t, p, export("kubernetes", "deployments.apps")), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	after := consumer(t, p)
	deploy(t, after, "good")
	eventually(t, func() error {
		b, err := before.Dynamic.Resource(bindings).Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil || !strings.Contains(text(b.Object["status"]), "another storage for deployments.apps than when it was bound") {
			return fmt.Errorf("the older binding: %s, %v", text(b), err)
		}
		return nil
	})
	got, err := view(t, p, "*").Resource(deployments).List(t.Context(), metav1.ListOptions{})
	if err != nil || !slices.Contains(namesIn(got), after.Name+"/good") {
		t.Errorf("the view lists %s, %v", namesIn(got), err)
	}
	config := rest.CopyConfig(p.Config)
	config.Host = p.Server.URL() + "/services/apiexport/" + p.Name + "/kubernetes/clusters/*"
	if table, err := get(t, &kcptest.Cluster{Config: config}, "/apis/apps/v1/deployments", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1"); err != nil || !strings.Contains(table, "good") {
		t.Errorf("as a table: %s, %v", table, err)
	}
	if _, err := view(t, p, before.Name).Resource(deployments).Namespace("default").Get(t.Context(), "wrong", metav1.GetOptions{}); err != nil {
		t.Errorf("of the older consumer: %v", err)
	}
	if list, err := before.Dynamic.Resource(deployments).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 3 {
		t.Errorf("the older consumer has %s, %v", text(list), err)
	}
}

// changed returns an export with the resource version of the stored one.
func changed(t *testing.T, p *kcptest.Cluster, to *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	old, err := p.Dynamic.Resource(exports).Get(t.Context(), to.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := to.Object["spec"].(map[string]any)
	spec["identity"], _, _ = unstructured.NestedFieldNoCopy(old.Object, "spec", "identity")
	old.Object["spec"] = spec
	return old
}

// What one server has acknowledged holds at another for requests that begin later.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, etcdtest.Options{})
	var all []*kcp.Server
	for range 2 {
		all = append(all, started(t, &kcp.Server{NoSync: true, Dir: t.TempDir(), Etcd: kcp.Etcd{Servers: e.Servers()}, Extensions: universe.Server.Extensions}))
	}
	for i := range 4 {
		one, two := all[i%2], all[1-i%2]
		p, c := at(t, one, fmt.Sprint("provider-", i)), at(t, one, fmt.Sprint("consumer-", i))
		if _, err := p.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", "deployments.apps"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		there := at(t, two, c.Name)
		bind(t, there, p)
		w, err := typed(t, c).AppsV1().Deployments("").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		deploy(t, c, "web")
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Errorf("watched %s", e.Type)
		}
		if _, err := typed(t, there).AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
			t.Errorf("at the other server: %v", err)
		}
		unbind(t, c)
		// A server that still knows the binding as one that ends refuses with 405.
		eventually(t, func() error {
			_, err := typed(t, there).AppsV1().Deployments("default").Create(t.Context(), deployment("late"), metav1.CreateOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case apierrors.IsMethodNotSupported(err):
				return err
			}
			t.Fatalf("created at the other server after unbinding: %v", err)
			return nil
		})
		for range w.ResultChan() { //nolint:revive // it must end
		}
	}
}
