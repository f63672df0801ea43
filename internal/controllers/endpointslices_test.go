package controllers

import (
	"fmt"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/values"
)

// A sliceWorld is a store with exports, bindings and slices, and the causes of the loop.
type sliceWorld struct {
	*testing.T
	store  *store.Store
	causes *sliceCauses
}

func newSliceWorld(t *testing.T) *sliceWorld {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.Values().Register(serve.CustomResourceDefinitions(), values.Codec{Codec: apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)})
	r := serve.NewResolver(func(cluster.Name) *serve.Shape { return serve.NewShape() })
	tree := tenancy.NewTree(s, tenancy.WorkspaceResource("w"), "https://kcp.example.com")
	apis := bind.New(s, serve.NewDefinitions(s, r), r, &tenancy.Workspaces{Store: s, Tree: tree}, map[string]string{})
	w := &sliceWorld{t, s, &sliceCauses{own: bind.SliceResource(), all: apis.Slices}}
	w.causes.follow(Deps{Store: s, APIs: apis})
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// put stores an object, or deletes it if spec is empty. It returns the slices that the loop looks at
// because of it.
func (w *sliceWorld) put(r keys.Resource, c cluster.Name, name, spec string) string {
	w.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(spec), &u.Object); err != nil {
		w.Fatal(err)
	}
	if u.Object == nil {
		u.Object = map[string]any{}
	}
	u.SetAPIVersion("apis.kcp.io/v1alpha2")
	u.SetKind("Any")
	u.SetName(name)
	rev, _, err := w.store.Revision(w.Context(), r.Key(c, "", name))
	if err == nil {
		rev, err = w.store.Commit(w.Context(), []store.Write{{Resource: r, Cluster: c, Object: u, Expect: rev, Delete: spec == "", Payer: cluster.Admin}})
	}
	if err == nil {
		err = w.store.Feed().WaitFor(w.Context(), rev)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.causes.mu.Lock()
	defer w.causes.mu.Unlock()
	var woken []string
	for k := range w.causes.waiting {
		woken = append(woken, string(k.Cluster)+"/"+k.Name)
	}
	w.causes.waiting = map[control.Key]struct{}{}
	slices.Sort(woken)
	return fmt.Sprint(woken)
}

// TestASliceFollowsItsOwnExport shows that events of an export, and its first and last binding, wake
// the loop for the slices of that export alone. Slices whose path leads nowhere follow the export that
// appears there, and no other.
func TestASliceFollowsItsOwnExport(t *testing.T) {
	w := newSliceWorld(t)
	const identified = `{status: {identityHash: f00d}}`
	expect := func(got, want, when string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, the loop looks at %s, want %s", when, got, want)
		}
	}
	clusters := []cluster.Name{"one", "other", "third", "consumer"}
	for _, c := range clusters {
		if _, err := w.store.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			t.Fatal(err)
		}
	}
	w.put(bind.SliceResource(), "one", "widgets", `{spec: {export: {name: widgets}}}`)
	w.put(bind.SliceResource(), "other", "widgets", `{spec: {export: {name: widgets, path: other}}}`)
	w.put(bind.SliceResource(), "third", "a", `{spec: {export: {name: widgets, path: one}}}`)
	w.put(bind.SliceResource(), "third", "lost", `{spec: {export: {name: widgets, path: "root:gone"}}}`)
	expect(w.put(bind.ExportResource(), "one", "widgets", identified), "[one/widgets third/a]", "after the creation of an export")
	expect(w.put(bind.ExportResource(), "other", "widgets", identified), "[other/widgets]", "after that of another")

	bound := func(to cluster.Name) string {
		return fmt.Sprintf(`{spec: {reference: {export: {name: widgets, path: %s}}}, status: {apiExportClusterName: %s, phase: Bound}}`, to, to)
	}
	expect(w.put(bind.BindingResource(), "consumer", "b", bound("one")), "[one/widgets third/a]", "after the first binding")
	expect(w.put(bind.BindingResource(), "consumer", "c", bound("one")), "[]", "after the second binding")
	expect(w.put(bind.BindingResource(), "consumer", "b", ""), "[]", "after the deletion of one of two")
	expect(w.put(bind.BindingResource(), "consumer", "c", bound("other")), "[one/widgets other/widgets third/a]", "after the last binding went elsewhere")
	expect(w.put(bind.BindingResource(), "consumer", "c", ""), "[other/widgets]", "after the deletion of the last binding")
	expect(w.put(bind.ExportResource(), "one", "widgets", ""), "[one/widgets third/a]", "after the deletion of an export")

	// A workspace appears where a path led nowhere, and another one inside it.
	for c, owner := range map[cluster.Name]string{"gone": `{cluster: root, name: gone}`, "inner": `{cluster: gone, name: inner}`} {
		if _, err := w.store.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			t.Fatal(err)
		}
		w.put(tenancy.LogicalClusters(), c, "cluster", fmt.Sprintf(`{spec: {owner: %s}}`, owner))
	}
	w.put(bind.SliceResource(), "third", "deep", `{spec: {export: {name: widgets, path: "root:gone:inner"}}}`)
	w.put(bind.SliceResource(), "third", "shallow", `{spec: {export: {name: widgets, path: "gone:inner"}}}`)
	w.put(bind.SliceResource(), "third", "else", `{spec: {export: {name: widgets, path: "root:inner"}}}`)
	expect(w.put(bind.ExportResource(), "gone", "widgets", identified), "[third/lost]", "after the creation of an export at a path that led nowhere")
	expect(w.put(bind.ExportResource(), "inner", "widgets", identified), "[third/deep third/shallow]", "after the creation of one below")
	w.put(bind.SliceResource(), "third", "deep", "")
	expect(w.put(bind.ExportResource(), "inner", "widgets", ""), "[third/shallow]", "after the deletion of a slice")
}
