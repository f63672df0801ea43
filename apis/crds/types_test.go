package crds_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/apis/apis/v1alpha2"
	cache "github.com/unforked/kcp/apis/cache/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/apis/crds"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// TestGoTypes takes objects through the Go types and expects them back unchanged. They
// use every field, except for fields that exclude another one.
func TestGoTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		core.AddToScheme, tenancy.AddToScheme, topology.AddToScheme, cache.AddToScheme, workload.AddToScheme, scheduling.AddToScheme, v1alpha1.AddToScheme, v1alpha2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range crds.All() {
		for _, version := range load(t, name, "v1alpha1").crd.Spec.Versions {
			t.Run(name+" "+version.Name, func(t *testing.T) { throughGoType(t, load(t, name, version.Name), scheme) })
		}
	}
}

func throughGoType(t *testing.T, d definition, scheme *runtime.Scheme) {
	text, err := os.ReadFile("testdata/" + d.crd.Name + "_" + d.version + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := d.object(t, string(text))
	if refusals := d.refusals(t, nil, want); len(refusals) > 0 {
		t.Errorf("refused: %q", refusals)
	}
	raw, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	o, gvk, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (schema.GroupVersionKind{Group: d.crd.Spec.Group, Version: d.version, Kind: d.crd.Spec.Names.Kind}); *gvk != want {
		t.Errorf("decoded as %s, want %s", gvk, want)
	}
	if !scheme.Recognizes(gvk.GroupVersion().WithKind(d.crd.Spec.Names.ListKind)) {
		t.Errorf("%s is unknown", d.crd.Spec.Names.ListKind)
	}
	got, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.DeepCopyObject())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestConvertedObjects expects that a server accepts what conversion makes of objects that it
// accepts.
func TestConvertedObjects(t *testing.T) {
	converted(t, exports, "v1alpha1", "v1alpha2", (*v1alpha1.APIExport).ToV1alpha2)
	converted(t, exports, "v1alpha2", "v1alpha1", v1alpha1.APIExportFromV1alpha2)
	converted(t, bindings, "v1alpha1", "v1alpha2", (*v1alpha1.APIBinding).ToV1alpha2)
	converted(t, bindings, "v1alpha2", "v1alpha1", v1alpha1.APIBindingFromV1alpha2)
}

func converted[From, To any](t *testing.T, name, from, to string, convert func(*From) *To) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + "_" + from + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var in From
	if err := yaml.Unmarshal(text, &in); err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.Marshal(convert(&in))
	if err != nil {
		t.Fatal(err)
	}
	d := load(t, name, to)
	if refusals := d.refusals(t, nil, d.object(t, string(raw))); len(refusals) > 0 {
		t.Errorf("%s from %s to %s: %q\n%s", name, from, to, refusals, raw)
	}
}
