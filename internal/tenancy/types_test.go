package tenancy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// add creates or replaces a type in the root workspace, and waits until the tree has it.
func (w *Workspaces) add(t *testing.T, name string, spec tenancyapi.WorkspaceTypeSpec) {
	t.Helper()
	of := &tenancyapi.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	k := keys.Key{Resource: w.TypeResource, Cluster: cluster.Root, Name: name}
	rev, _, err := w.Store.Revision(t.Context(), k)
	if err == nil {
		err = w.commitType(t.Context(), cluster.Root, of, rev)
	}
	if err == nil {
		rev, _, err = w.Store.Revision(t.Context(), k)
	}
	if err == nil {
		err = w.Store.Feed().WaitFor(t.Context(), rev)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func inRoot(name string) tenancyapi.WorkspaceTypeReference {
	return tenancyapi.WorkspaceTypeReference{Name: name, Path: "root"}
}

func extending(names ...string) *tenancyapi.WorkspaceTypeExtension {
	e := &tenancyapi.WorkspaceTypeExtension{}
	for _, n := range names {
		e.With = append(e.With, inRoot(n))
	}
	return e
}

// The types that every server has limit parents and children.
func TestShippedTypes(t *testing.T) {
	w := openWorld(t, t.TempDir())
	template := func(name string) *tree.Template {
		tmpl, err := w.Types.Template(t.Context(), cluster.Root, inRoot(name))
		if err != nil {
			t.Fatal(err)
		}
		if len(tmpl.Initializers)+len(tmpl.Terminators) > 0 {
			t.Errorf("workspaces of type %s wait for %v, %v", name, tmpl.Initializers, tmpl.Terminators)
		}
		return tmpl
	}
	for _, say := range []struct{ child, parent, why string }{
		{"organization", "root", ""},
		{"universal", "root", ""},
		{"team", "root", `"root:team" only allows [root:organization root:team] parent workspaces, but parent type "root:root" only implements [root:root root:universal]`},
		{"team", "organization", ""},
		{"team", "team", ""},
		{"universal", "organization", ""},
		{"universal", "home", ""},
		{"organization", "team", `"root:organization" only allows [root:root] parent workspaces`},
		{"home", "root", `"root:home" cannot have any parent`},
		{"root", "root", `"root:root" cannot have any parent`},
	} {
		err := w.Types.Allowed(template(say.child), template(say.parent))
		if got := fmt.Sprint(err); say.why == "" && err != nil || !strings.Contains(got, say.why) {
			t.Errorf("%s in %s: %v, not %q", say.child, say.parent, err, say.why)
		}
	}
	if got := tree.DefaultChild(template("root")); got != inRoot("organization") {
		t.Errorf("workspaces in root are %v", got)
	}
	if got := tree.DefaultChild(template("organization")); got != inRoot(tree.Universal) {
		t.Errorf("workspaces in organizations are %v", got)
	}
	if got := tree.DefaultChild(nil); got != inRoot(tree.Universal) {
		t.Errorf("workspaces where there is no type are %v", got)
	}
}

// Initializers and terminators are in the order of spec.extend.with, each type followed
// by the types that it extends. The initializer and terminator of the type itself are last.
func TestOrderOfInitializers(t *testing.T) {
	w := openWorld(t, t.TempDir())
	spec := func(names ...string) tenancyapi.WorkspaceTypeSpec {
		return tenancyapi.WorkspaceTypeSpec{Initializer: true, Terminator: true, Extend: extending(names...)}
	}
	for _, name := range []string{"deepest", "shared"} {
		w.add(t, name, spec())
	}
	w.add(t, "first", spec("shared", "deepest"))
	w.add(t, "second", spec("shared"))
	w.add(t, "own", spec("second", "first"))
	tmpl, err := w.Types.Template(t.Context(), cluster.Root, inRoot("own"))
	if err != nil {
		t.Fatal(err)
	}
	want := []core.Initializer{"root:second", "root:shared", "root:first", "root:deepest", "root:own"}
	if diff := cmp.Diff(want, tmpl.Initializers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]core.Terminator{"root:second", "root:shared", "root:first", "root:deepest", "root:own"}, tmpl.Terminators); diff != "" {
		t.Error(diff)
	}
}

// Templates are cached until the type, or a type that it extends, changes.
func TestTemplatesAreKept(t *testing.T) {
	w := openWorld(t, t.TempDir())
	get := func() *tree.Template {
		tmpl, err := w.Types.Template(t.Context(), cluster.Root, inRoot("a"))
		if err != nil {
			t.Fatal(err)
		}
		return tmpl
	}
	w.add(t, "b", tenancyapi.WorkspaceTypeSpec{})
	w.add(t, "a", tenancyapi.WorkspaceTypeSpec{Extend: extending("b")})
	first := get()
	if get() != first {
		t.Error("a template is made twice")
	}
	w.add(t, "b", tenancyapi.WorkspaceTypeSpec{Initializer: true, Terminator: true})
	second := get()
	if diff := cmp.Diff([]core.Initializer{"root:b"}, second.Initializers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]core.Terminator{"root:b"}, second.Terminators); diff != "" || len(first.Initializers) > 0 {
		t.Errorf("%s, first %v", diff, first.Initializers)
	}
}

// Types that extend too many others, or themselves, are refused after a short search.
func TestTypesExtendSoManyOthers(t *testing.T) {
	w := openWorld(t, t.TempDir())
	for i := range tree.MaxAliases + 1 {
		w.add(t, fmt.Sprint("n", i), tenancyapi.WorkspaceTypeSpec{Extend: extending(fmt.Sprint("n", i+1))})
	}
	w.add(t, fmt.Sprint("n", tree.MaxAliases+1), tenancyapi.WorkspaceTypeSpec{})
	if _, err := w.Types.Template(t.Context(), cluster.Root, inRoot("n0")); err == nil || !strings.Contains(err.Error(), "more than 64 others") {
		t.Errorf("%v", err)
	}
	if _, err := w.Types.Template(t.Context(), cluster.Root, inRoot("n2")); err != nil {
		t.Error(err)
	}
	w.add(t, "me", tenancyapi.WorkspaceTypeSpec{Extend: extending("me")})
	if _, err := w.Types.Template(t.Context(), cluster.Root, inRoot("me")); err == nil || !strings.Contains(err.Error(), "root:me extends root:me") {
		t.Errorf("%v", err)
	}
}

// A workspace whose creation was interrupted waits for its initializers, even if its type
// was deleted in the meantime.
func TestCutBeforeItsInitializers(t *testing.T) {
	w := openWorld(t, t.TempDir())
	w.add(t, "web", tenancyapi.WorkspaceTypeSpec{Initializer: true})
	tmpl, err := w.Types.Template(t.Context(), cluster.Root, inRoot("web"))
	if err != nil {
		t.Fatal(err)
	}
	b := w.birth(cluster.NewName(), metav1.Now())
	b.template = tmpl
	ws := &tenancyapi.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "cut", UID: "1"}}
	ref := inRoot("web")
	ws.Spec.Type = &ref
	if _, err := w.createFirst(t.Context(), b, cluster.Root, ws, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Complete(t.Context(), b.cluster); err != nil {
		t.Fatal(err)
	}
	got := w.of(t, cluster.Root, "cut")
	if diff := cmp.Diff([]core.Initializer{"root:web"}, got.Status.Initializers); diff != "" || got.Status.Phase != core.PhaseInitializing {
		t.Errorf("%s, phase %s", diff, got.Status.Phase)
	}
}

// If the type is deleted between admission and creation, no part of the workspace is
// created.
func TestTypeGoesBeforeTheBirth(t *testing.T) {
	w := openWorld(t, t.TempDir())
	ws := newWorkspace("w")
	ws.Object["spec"] = map[string]any{"type": map[string]any{"name": "gone", "path": "root"}}
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "ada"})
	if err := w.Create(ctx, cluster.Root, ws); err == nil || !strings.Contains(err.Error(), `"root:gone" cannot be resolved`) {
		t.Errorf("%v", err)
	}
	if left := w.of(t, cluster.Root, "w"); left != nil {
		t.Errorf("left is %v", left)
	}
}

func TestAdvance(t *testing.T) {
	now := metav1.Now()
	failing := conditions.Conditions{{Type: "WorkspaceMountReady", Status: "False"}}
	for name, say := range map[string]struct {
		from  core.Phase
		left  []core.Initializer
		says  conditions.Conditions
		want  core.Phase // of the cluster
		shows core.Phase // of its Workspace
	}{
		"nobody to wait for":  {core.PhaseScheduling, nil, nil, core.PhaseReady, core.PhaseReady},
		"somebody":            {core.PhaseScheduling, []core.Initializer{"root:a"}, nil, core.PhaseInitializing, core.PhaseInitializing},
		"still":               {core.PhaseInitializing, []core.Initializer{"root:a"}, failing, core.PhaseInitializing, core.PhaseInitializing},
		"nobody any more":     {core.PhaseInitializing, nil, nil, core.PhaseReady, core.PhaseReady},
		"something is wrong":  {core.PhaseReady, nil, failing, core.PhaseReady, core.PhaseUnavailable},
		"offline":             {core.PhaseInactive, nil, nil, core.PhaseInactive, core.PhaseInactive},
		"deleted meanwhile":   {core.PhaseDeleting, nil, failing, core.PhaseDeleting, core.PhaseDeleting},
		"others clean up now": {core.PhaseTerminating, nil, nil, core.PhaseTerminating, core.PhaseTerminating},
	} {
		l := &core.LogicalCluster{}
		l.Status.Phase, l.Spec.Initializers = say.from, say.left
		if say.from != core.PhaseScheduling {
			l.Status.Initializers = say.left
		}
		ws := &tenancyapi.Workspace{}
		ws.Status.Conditions = say.says
		if !advance(l, ws, now) || l.Status.Phase != say.want || ws.Status.Phase != say.shows {
			t.Errorf("%s: %s and %s, not %s and %s", name, l.Status.Phase, ws.Status.Phase, say.want, say.shows)
		}
		if advance(l, ws, now) {
			t.Errorf("%s: a second time changes something", name)
		}
	}
}

// A home waits for the initializers of its type.
func TestHomeWaitsForItsInitializers(t *testing.T) {
	w := openWorld(t, t.TempDir())
	w.add(t, homeType, tenancyapi.WorkspaceTypeSpec{Initializer: true})
	u := &user.DefaultInfo{Name: "ada"}
	for range 2 {
		if home, err := w.Home(t.Context(), u, allowed); !errors.Is(err, ErrHomeWaits) {
			t.Fatalf("%v, %v", home, err)
		}
	}
	c := cluster.Home("ada")
	l, rev, err := read[core.LogicalCluster](t.Context(), w.Store, clusterKey(c))
	if err != nil || len(l.Status.Initializers) != 1 || l.Status.Phase != core.PhaseInitializing {
		t.Fatalf("%+v, %v", l, err)
	}
	l.Status.Initializers = nil
	lc, err := values.Unstructured(l, core.GroupVersion.WithKind("LogicalCluster"))
	if err == nil {
		_, err = w.Store.Commit(t.Context(), []store.Write{{Resource: tree.LogicalClusters(), Cluster: c, Object: lc, Expect: rev}})
	}
	if err == nil {
		err = w.Complete(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	if home, err := w.Home(t.Context(), u, allowed); err != nil || home.Status.Phase != core.PhaseReady {
		t.Errorf("%v, %v", home, err)
	}
}

// A change of a type whose default bindings are maintained concerns the clusters of the type, and of
// types that extend it directly or through others.
func TestMaintainedClusters(t *testing.T) {
	w := openWorld(t, t.TempDir())
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "ada", Groups: []string{user.SystemPrivilegedGroup}})
	names := map[string]cluster.Name{}
	for _, of := range [][2]string{{"kept", "universal"}, {"further", "kept"}, {"last", "further"}, {"other", "universal"}} {
		w.add(t, of[0], tenancyapi.WorkspaceTypeSpec{Extend: extending(of[1])})
		ws := newWorkspace(of[0])
		_ = unstructured.SetNestedField(ws.Object, of[0], "spec", "type", "name")
		if err := w.Create(ctx, cluster.Root, ws); err != nil {
			t.Fatal(err)
		}
		names[of[0]] = cluster.Name(w.of(t, cluster.Root, of[0]).Spec.Cluster)
	}
	if all := w.Types.Maintained(cluster.Root, "kept"); len(all) > 0 {
		t.Errorf("without default bindings: %v", all)
	}
	maintain := tenancyapi.Maintain
	w.add(t, "kept", tenancyapi.WorkspaceTypeSpec{
		Extend: extending("universal"), DefaultAPIBindingLifecycle: &maintain,
		DefaultAPIBindings: []tenancyapi.APIExportReference{{Path: "root", Export: "widgets"}},
	})
	got := w.Types.Maintained(cluster.Root, "kept")
	want := []cluster.Name{names["kept"], names["further"], names["last"]}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("the change concerns %v, not %v", got, want)
	}
}
