package garbage

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// Objects that wait for an unserved kind are checked again when the APIs of their cluster
// change, and not earlier.
func TestOwnersAreLookedForOnceTheirKindIsServed(t *testing.T) {
	t.Parallel()
	st := openWithCluster(t)
	var shape atomic.Pointer[catalog.Shape]
	shape.Store(catalog.NewShape(things(t, "Dependent")))
	done := runObserved(t, New(st, catalog.NewKinds(nil, func(cluster.Name) *catalog.Shape { return shape.Load() }), nil))

	write := func(group, resource, kind, name string, owners ...metav1.OwnerReference) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
		u.SetName(name)
		u.SetUID(types.UID(name))
		u.SetOwnerReferences(owners)
		r := keys.CustomResource(schema.GroupResource{Group: group, Resource: resource}, "")
		if _, err := st.Commit(t.Context(), []store.Write{{Resource: r, Cluster: "c1", Object: u}}); err != nil {
			t.Fatal(err)
		}
	}
	write("example.com", "owners", "Owner", "top")
	write("example.com", "dependents", "Dependent", "child", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Owner", Name: "top", UID: "top"})
	if w := <-done; w.key.Name != "top" || w.err == nil {
		t.Fatalf("%v was checked, with %v; its kind is not served", w.key, w.err)
	}
	shape.Store(catalog.NewShape(things(t, "Dependent"), things(t, "Owner")))
	write("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "owners.example.com")
	for range 2 { // the owner, and then the dependent
		if w := <-done; w.err != nil {
			t.Errorf("%v: %v", w.key, w.err)
		}
	}
}

// busy answers 504 to the first request, and accepts events after that.
type busy struct {
	asked atomic.Int32
	told  chan struct{}
}

// RoundTrip implements [http.RoundTripper].
func (b *busy) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if b.asked.Add(1) == 1 {
		w.WriteHeader(http.StatusGatewayTimeout)
	} else if strings.HasSuffix(req.URL.Path, "/events") {
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Event"}`)
		b.told <- struct{}{}
	}
	return w.Result(), nil
}

// An owner in another namespace is reported once, although the first attempt fails.
func TestMisplacedOwnersAreReportedAgain(t *testing.T) {
	t.Parallel()
	st := openWithCluster(t)
	shape := catalog.NewShape(things(t, "Dependent"), scopedThings(t, "Owner", apiextensionsv1.NamespaceScoped))
	server := &busy{told: make(chan struct{}, 10)}
	done := runObserved(t, New(st, catalog.NewKinds(nil, func(cluster.Name) *catalog.Shape { return shape }), func(cluster.Name) *rest.Config {
		return &rest.Config{Host: "http://kcp", Transport: server}
	}))
	for _, o := range []*unstructured.Unstructured{
		{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Owner", "metadata": map[string]any{"namespace": "ns", "name": "top", "uid": "top"}}},
		{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Dependent", "metadata": map[string]any{"name": "child", "uid": "child", "ownerReferences": []any{
			map[string]any{"apiVersion": "example.com/v1", "kind": "Owner", "name": "top", "uid": "top"},
		}}}},
	} {
		r := keys.CustomResource(schema.GroupResource{Group: "example.com", Resource: strings.ToLower(o.GetKind()) + "s"}, "")
		if _, err := st.Commit(t.Context(), []store.Write{{Resource: r, Cluster: "c1", Object: o}}); err != nil {
			t.Fatal(err)
		}
	}
	failed := false
	for w := range done {
		failed = failed || w.key.Name == "child" && w.err != nil
		if w.key.Name == "child" && w.err == nil {
			break
		}
	}
	if len(server.told) != 1 || !failed {
		t.Errorf("reported %d times; an attempt failed: %v", len(server.told), failed)
	}
}

type worked struct {
	key control.Key
	err error
}

// openWithCluster opens a store with the active cluster c1.
func openWithCluster(t *testing.T) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if _, err := st.Commit(t.Context(), nil, store.Fence{Cluster: "c1", State: store.Active}); err != nil {
		t.Fatal(err)
	}
	return st
}

// runObserved runs a garbage collector, and reports every object that it checks.
func runObserved(t *testing.T, g *Collector) <-chan worked {
	t.Helper()
	loop, done := g.Loop(), make(chan worked, 100)
	do := loop.Do
	loop.Do = func(ctx context.Context, k control.Key) error {
		err := do(ctx, k)
		done <- worked{k, err}
		return err
	}
	if err := g.store.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { control.Runner{}.Run(ctx, loop) })
	t.Cleanup(func() { stop(); running.Wait() })
	return done
}

// things is the definition of a kind without namespaces.
func things(t *testing.T, kind string) catalog.Served {
	t.Helper()
	return scopedThings(t, kind, apiextensionsv1.ClusterScoped)
}

func scopedThings(t *testing.T, kind string, scope apiextensionsv1.ResourceScope) catalog.Served {
	t.Helper()
	plural := map[string]string{"Owner": "owners", "Dependent": "dependents"}[kind]
	content, err := catalog.NewContent(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: scope,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return catalog.Served{Content: content}
}
