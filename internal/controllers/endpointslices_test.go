package controllers

import (
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// A sliceWorld is a store with exports, bindings and slices, and the inboxes of their loops.
type sliceWorld struct {
	*testing.T
	store            *store.Store
	slices, bindings *wakes
	looks            *wakes // the one whose keys put returns
}

func newSliceWorld(t *testing.T) *sliceWorld {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.Values().Register(define.Resource(), values.Codec{Codec: apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)})
	r := catalog.NewResolver(func(cluster.Name) *catalog.Shape { return catalog.NewShape() })
	tree := tree.NewTree(s, tenancy.WorkspaceResource("w"), "https://kcp.example.com")
	d, w := define.New(s, r), &tenancy.Workspaces{Store: s, Tree: tree}
	apis := bind.New(s, exports.New(s, d, w), d, r, w)
	slices := endpoints.New(s, apis, w, "")
	storage := virtual.New(virtual.Config{Store: s, Resolver: r, APIs: apis, Endpoints: slices, Workspaces: w})
	causes := &sliceCauses{own: exports.SliceResource(), all: slices.Slices}
	causes.follow(Deps{Store: s, APIs: apis, Endpoints: slices, Virtual: storage})
	bindings := trigger.New(func() []control.Key { return nil })
	s.Feed().Follow(&bindingCauses{bindings, apis})
	world := &sliceWorld{T: t, store: s, slices: wakesOf(causes.Inbox), bindings: wakesOf(bindings)}
	world.looks = world.slices
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return world
}

// active makes clusters active.
func (w *sliceWorld) active(clusters ...cluster.Name) {
	w.Helper()
	for _, c := range clusters {
		if _, err := w.store.Commit(w.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			w.Fatal(err)
		}
	}
}

// below gives a new cluster a place in the tree.
func (w *sliceWorld) below(parent cluster.Name, name string) {
	w.Helper()
	c := cluster.Name(name)
	w.active(c)
	w.put(tree.LogicalClusters(), c, "cluster", fmt.Sprintf(`{spec: {owner: {cluster: %s, name: %s}}}`, parent, name))
}

// put stores an object, or deletes it if spec is empty. It returns the keys that the loop looks at
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
	return fmt.Sprint(w.looks.take())
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
	w.active("one", "other", "third", "consumer")
	w.put(exports.SliceResource(), "one", "widgets", `{spec: {export: {name: widgets}}}`)
	w.put(exports.SliceResource(), "other", "widgets", `{spec: {export: {name: widgets, path: other}}}`)
	w.put(exports.SliceResource(), "third", "a", `{spec: {export: {name: widgets, path: one}}}`)
	w.put(exports.SliceResource(), "third", "lost", `{spec: {export: {name: widgets, path: "root:gone"}}}`)
	expect(w.put(exports.Resource(), "one", "widgets", identified), "[one|widgets third|a]", "after the creation of an export")
	expect(w.put(exports.Resource(), "other", "widgets", identified), "[other|widgets]", "after that of another")

	bound := func(to cluster.Name) string {
		return fmt.Sprintf(`{spec: {reference: {export: {name: widgets, path: %s}}}, status: {apiExportClusterName: %s, phase: Bound}}`, to, to)
	}
	expect(w.put(bind.BindingResource(), "consumer", "b", bound("one")), "[one|widgets third|a]", "after the first binding")
	expect(w.put(bind.BindingResource(), "consumer", "c", bound("one")), "[]", "after the second binding")
	expect(w.put(bind.BindingResource(), "consumer", "b", ""), "[]", "after the deletion of one of two")
	expect(w.put(bind.BindingResource(), "consumer", "c", bound("other")), "[one|widgets other|widgets third|a]", "after the last binding went elsewhere")
	expect(w.put(bind.BindingResource(), "consumer", "c", ""), "[other|widgets]", "after the deletion of the last binding")
	expect(w.put(exports.Resource(), "one", "widgets", ""), "[one|widgets third|a]", "after the deletion of an export")

	// A workspace appears where a path led nowhere, and another one inside it.
	w.below("root", "gone")
	w.below("gone", "inner")
	w.put(exports.SliceResource(), "third", "deep", `{spec: {export: {name: widgets, path: "root:gone:inner"}}}`)
	w.put(exports.SliceResource(), "third", "shallow", `{spec: {export: {name: widgets, path: "gone:inner"}}}`)
	w.put(exports.SliceResource(), "third", "else", `{spec: {export: {name: widgets, path: "root:inner"}}}`)
	expect(w.put(exports.Resource(), "gone", "widgets", identified), "[third|lost]", "after the creation of an export at a path that led nowhere")
	expect(w.put(exports.Resource(), "inner", "widgets", identified), "[third|deep third|shallow]", "after the creation of one below")
	w.put(exports.SliceResource(), "third", "deep", "")
	expect(w.put(exports.Resource(), "inner", "widgets", ""), "[third|shallow]", "after the deletion of a slice")
}

// TestABindingWaitsForItsOwnExport shows that a binding that has found no export, or another one than
// before, follows the exports that appear at its path. Other exports of the name do not concern it.
func TestABindingWaitsForItsOwnExport(t *testing.T) {
	w := newSliceWorld(t)
	w.looks = w.bindings
	w.active("one", "consumer")
	binding := func(name, path, status string) {
		w.put(bind.BindingResource(), "consumer", name, fmt.Sprintf(`{spec: {reference: {export: {name: widgets, path: "%s"}}}, status: %s}`, path, status))
	}
	const lacks = `conditions: [{type: APIExportValid, status: "False", reason: %s}]`
	binding("bound", "one", `{apiExportClusterName: one, phase: Bound}`)
	binding("new", "root:gone", `{}`)
	binding("lost", "root:gone", fmt.Sprintf(`{apiExportClusterName: former, `+lacks+`}`, "APIExportNotFound"))
	binding("replaced", "gone", fmt.Sprintf(`{apiExportClusterName: former, phase: Bound, `+lacks+`}`, "APIExportInvalidReference"))
	binding("own", "", fmt.Sprintf(`{`+lacks+`}`, "APIExportNotFound"))
	w.below("root", "gone")
	for _, of := range []struct {
		c          cluster.Name
		name, want string
	}{
		{"one", "widgets", "[consumer|bound]"},
		{"gone", "widgets", "[consumer|lost consumer|new consumer|replaced]"},
		{"gone", "gadgets", "[]"},
		{"consumer", "widgets", "[consumer|own]"},
	} {
		if got := w.put(exports.Resource(), of.c, of.name, `{status: {identityHash: f00d}}`); got != of.want {
			t.Errorf("after the creation of %s in %s, the loop looks at %s, want %s", of.name, of.c, got, of.want)
		}
	}
	binding("lost", "root:gone", `{apiExportClusterName: one, phase: Bound}`)
	if got := w.put(exports.Resource(), "gone", "widgets", `{status: {identityHash: f00e}}`); got != "[consumer|new consumer|replaced]" {
		t.Errorf("after one binding has found another export, the loop looks at %s", got)
	}
}
