package exports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// A consumer stays in its ring: at every percentage, and in later versions of kcp. Growing rings only
// gain consumers.
func TestRingsAreStable(t *testing.T) {
	e := Name{Cluster: "2f0k3gqiqg09g1wz", Name: "widgets"}
	for c, want := range map[cluster.Name]uint64{"root": 87, "3x7hgqiqg09g1wzp": 23, "4y8hgqiqg09g1wzp": 20} {
		if got := hundredth(e, c); got != want {
			t.Errorf("%s is in hundredth %d, want %d", c, got, want)
		}
	}
	if hundredth(e, "root") == hundredth(Name{Cluster: e.Cluster, Name: "gadgets"}, "root") {
		t.Error("the first ring of each export has the same consumers")
	}
	selected := make([]int, 101)
	for i := range 1000 {
		c := cluster.Name(fmt.Sprintf("c%d", i))
		before := false
		for percent := range selected {
			in := Selects(stageOf(apisv1alpha1.RolloutRing{Percent: int32(percent)}), e, c)
			if before && !in {
				t.Fatalf("%s leaves the ring at %d %%", c, percent)
			}
			if before = in; in {
				selected[percent]++
			}
		}
	}
	if selected[0] != 0 || selected[100] != 1000 || selected[10] < 70 || selected[10] > 130 {
		t.Errorf("of 1000 consumers, 0 %% are %d, 10 %% are %d, 100 %% are %d", selected[0], selected[10], selected[100])
	}
	if Selects(stageOf(apisv1alpha1.RolloutRing{Percent: -1}), e, "root") {
		t.Error("a negative percentage selects a consumer")
	}
	if !Selects(stageOf(apisv1alpha1.RolloutRing{Clusters: []string{"other", "root"}}), e, "root") {
		t.Error("a ring does not select a consumer by name")
	}
	if s := stageOf(apisv1alpha1.RolloutRing{}, "other", "root"); !Selects(s, e, "root") || Selects(s, e, "team") {
		t.Error("a stage has others than its selector selected")
	}
}

func stageOf(r apisv1alpha1.RolloutRing, selected ...string) apisv1alpha1.RolloutStage {
	return apisv1alpha1.RolloutStage{Ring: r, Selected: selected}
}

// A rollout that has ended, or names no valid schema, gives no consumer another schema.
func TestRolloutOf(t *testing.T) {
	r := &apisv1alpha1.APIExportRollout{}
	r.Spec.Export = "widgets"
	r.Status.Stages = []apisv1alpha1.RolloutStage{{Schemas: []string{"v2.widgets.example.com", "malformed", ""}}}
	got, err := rolloutOf(r)
	if err != nil {
		t.Fatal(err)
	}
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	if s := got.Stages[0].Schemas; len(s) != 1 || s[widgets] != "v2.widgets.example.com" {
		t.Errorf("schemas: %v", s)
	}
	if on := begun(got); !slices.Equal(on, []string{"widgets"}) {
		t.Errorf("a rollout with stages is one of %v", on)
	}
	r.Status.Phase = apisv1alpha1.RolloutCompleted
	if got, err = rolloutOf(r); err != nil || len(got.Stages) != 0 || begun(got) != nil {
		t.Errorf("after its end: %+v, %v", got, err)
	}
}

// A reference is found by every path that leads to the cluster of the export, before and after
// other references are dropped.
func TestPathIndex(t *testing.T) {
	var x PathIndex[string]
	in := Ancestry{{"ccc", "c"}, {"bbb", "b"}, {"root", "root"}}
	for key, path := range map[string]string{
		"from the root": "root:b:c", "from the parent": "bbb:c", "by name": "ccc", "from a sibling": "bbb:d",
		"too long": "root:b:c:d", "too short": "root:b", "other words": "root:c:b", "malformed": "root:B:c", "empty word": "root::c",
	} {
		x.Put("elsewhere", path, "widgets", key)
	}
	x.Put("ccc", "", "widgets", "in its own cluster")
	x.Put("bbb", "", "widgets", "in the parent's cluster")
	x.Put("elsewhere", "root:b:c", "gadgets", "another name")
	find := func(want ...string) {
		t.Helper()
		got := x.Find(in, "widgets")
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	find("from the root", "from the parent", "by name", "in its own cluster")
	x.Put("elsewhere", "root:b:c", "widgets", "second")
	x.Drop("elsewhere", "root:b:c", "widgets", "from the root")
	x.Drop("elsewhere", "root:b:c", "widgets", "never put")
	x.Drop("elsewhere", "root:B:c", "widgets", "malformed")
	find("second", "from the parent", "by name", "in its own cluster")
	x.Drop("elsewhere", "root:b:c", "widgets", "second")
	x.Drop("elsewhere", "root:b:c", "gadgets", "another name")
	x.Clear()
	find()
	x.Put("ccc", "", "widgets", "again")
	x.Drop("ccc", "", "widgets", "again")
	if len(x.by) != 0 {
		t.Errorf("the index keeps %v", x.by)
	}
}

// Since changes with what an export publishes, and with nothing else.
func TestPublished(t *testing.T) {
	decoded := func(change func(*apisv1alpha2.APIExport)) *Export {
		e := &apisv1alpha2.APIExport{}
		e.Status.IdentityHash = "i"
		remote := &apisv1alpha2.VirtualStorage{IdentityHash: "of the slice"}
		remote.Reference.APIGroup, remote.Reference.Kind, remote.Reference.Name = ptr.To("example.com"), "Slice", "s"
		e.Spec.Resources = []apisv1alpha2.ResourceSchema{
			{Group: "example.com", Name: "widgets", Schema: "v1.widgets.example.com", Storage: apisv1alpha2.ResourceStorage{CRD: &apisv1alpha2.CRDStorage{}}},
			{Group: "example.com", Name: "gadgets", Schema: "v1.gadgets.example.com", Storage: apisv1alpha2.ResourceStorage{Virtual: remote}},
		}
		change(e)
		out, err := exportOf(e)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	base := decoded(func(*apisv1alpha2.APIExport) {})
	if base.Virtual(schema.GroupResource{Group: "example.com", Resource: "widgets"}) != nil || base.Virtual(schema.GroupResource{Resource: "none"}) != nil {
		t.Error("a stored resource is virtual")
	}
	if v := base.Virtual(schema.GroupResource{Group: "example.com", Resource: "gadgets"}); v == nil || v.Storage() != catalog.Remote {
		t.Errorf("the virtual resource is %+v", v)
	}
	for name, c := range map[string]struct {
		change func(*apisv1alpha2.APIExport)
		same   bool
	}{
		"a stored resource goes":      {func(e *apisv1alpha2.APIExport) { e.Spec.Resources = e.Spec.Resources[1:] }, true},
		"another schema":              {func(e *apisv1alpha2.APIExport) { e.Spec.Resources[1].Schema = "v2.gadgets.example.com" }, true},
		"claims":                      {func(e *apisv1alpha2.APIExport) { e.Spec.PermissionClaims = make([]apisv1alpha2.PermissionClaim, 1) }, true},
		"another identity":            {func(e *apisv1alpha2.APIExport) { e.Status.IdentityHash = "j" }, false},
		"a virtual resource goes":     {func(e *apisv1alpha2.APIExport) { e.Spec.Resources = e.Spec.Resources[:1] }, false},
		"another slice":               {func(e *apisv1alpha2.APIExport) { e.Spec.Resources[1].Storage.Virtual.Reference.Name = "t" }, false},
		"a kind of another group":     {func(e *apisv1alpha2.APIExport) { e.Spec.Resources[1].Storage.Virtual.Reference.APIGroup = nil }, false},
		"another identity of a slice": {func(e *apisv1alpha2.APIExport) { e.Spec.Resources[1].Storage.Virtual.IdentityHash = "" }, false},
		"a resource becomes virtual": {func(e *apisv1alpha2.APIExport) {
			e.Spec.Resources[0].Storage = e.Spec.Resources[1].Storage
		}, false},
	} {
		changed := decoded(c.change)
		changed.Since = 7
		if got := changed.published(base); got != c.same || base.published(changed) != c.same {
			t.Errorf("%s: publishes the same: %v", name, got)
		}
	}
}

// A hook gets an export in the version that is stored, and its caller the version of the request.
// After an error the object of the caller is as it was.
func TestInStorageVersion(t *testing.T) {
	refused := errors.New("refused")
	for _, version := range []string{"apis.kcp.io/v1alpha1", "apis.kcp.io/v1alpha2"} {
		for _, want := range []error{nil, refused} {
			hook := InStorageVersion(Resource().GroupResource(), func(_ context.Context, _ cluster.Name, obj *unstructured.Unstructured) error {
				if got := obj.GetAPIVersion(); got != "apis.kcp.io/v1alpha2" {
					t.Errorf("a hook gets an object in %s", got)
				}
				if want == nil {
					obj.SetAnnotations(map[string]string{"by": "hook"})
				}
				return want
			})
			obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "e"}, "spec": map[string]any{}}}
			obj.SetAPIVersion(version)
			obj.SetKind("APIExport")
			if err := hook(t.Context(), "c1", obj); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", version, err, want)
			}
			if obj.GetAPIVersion() != version || obj.GetKind() != "APIExport" || (obj.GetAnnotations()["by"] == "hook") != (want == nil) {
				t.Errorf("%s, %v: the caller gets %v", version, want, obj.Object)
			}
		}
	}
	convert := Converters()[Resource().GroupResource()]
	o := &unstructured.Unstructured{Object: map[string]any{"kind": "APIExport", "apiVersion": "apis.kcp.io/v1alpha2"}}
	for _, to := range []string{"apis.kcp.io/v1", "a/b/c", ""} {
		if got, err := convert(o, to); err == nil {
			t.Errorf("converted to %q: %v", to, got)
		}
	}
}
