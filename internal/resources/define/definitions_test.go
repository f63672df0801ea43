package define

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/watchcache"
)

// A world is a store with definitions in two clusters, c1 and c2.
type world struct {
	*testing.T
	*Definitions
	given    *catalog.Shape
	resolver *catalog.Resolver
	store    *store.Store
	caches   *watchcache.Caches
	crds     interface {
		rest.Creater
		rest.Updater
		rest.GracefulDeleter
	}
	status rest.Updater
}

// newWorld opens the store in dir. given returns the built-in contents of a cluster.
func newWorld(t *testing.T, dir string, given *catalog.Shape) *world {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	caches, err := watchcache.New(t.Context(), s, watchcache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(caches.Close)
	if given == nil {
		given = catalog.NewShape()
	}
	resolver := catalog.NewResolver(func(cluster.Name) *catalog.Shape { return given })
	r := &world{T: t, given: given, store: s, caches: caches, resolver: resolver, Definitions: New(s, resolver)}
	info, err := r.APIGroup(caches.Natives(func(gr schema.GroupResource, _ kruntime.Object) (*storagebackend.ConfigForResource, error) {
		return storagebackend.NewDefaultConfig("/", apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)).ForResource(gr), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	storages := info.VersionedResourcesStorageMap["v1"]
	r.crds = storages["customresourcedefinitions"].(*definitionStorage)
	r.status = storages["customresourcedefinitions/status"].(rest.Updater)
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []cluster.Name{"c1", "c2"} {
		if state, err := s.State(t.Context(), c); err != nil || state == store.Gone {
			if _, err := s.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return r
}

func (r *world) in(c cluster.Name) context.Context {
	return request.WithNamespace(request.WithRequestInfo(cluster.With(r.Context(), c), &request.RequestInfo{}), "")
}

// create creates a definition.
func (r *world) create(c cluster.Name, crd *definition) *definition {
	r.Helper()
	var internal apiextensions.CustomResourceDefinition
	crd = crd.DeepCopy()
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &internal, nil); err != nil {
		r.Fatal(err)
	}
	out, err := r.crds.Create(r.in(c), &internal, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return r.external(out)
}

func (r *world) external(o kruntime.Object) *definition {
	r.Helper()
	out := &definition{}
	if err := apiextensionsserver.Scheme.Convert(o, out, nil); err != nil {
		r.Fatal(err)
	}
	return out
}

// change updates a definition or, with the status storage, its status.
func (r *world) change(by rest.Updater, c cluster.Name, name string, f func(*apiextensions.CustomResourceDefinition)) *definition {
	r.Helper()
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old kruntime.Object) (kruntime.Object, error) {
		next := old.DeepCopyObject().(*apiextensions.CustomResourceDefinition)
		f(next)
		return next, nil
	})
	out, _, err := by.Update(r.in(c), name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return r.external(out)
}

// bytes stores arbitrary bytes as a definition, and waits until they are processed.
func (r *world) bytes(c cluster.Name, name, text string) {
	r.Helper()
	resp, err := r.store.RawClient().Put(r.Context(), fmt.Sprintf("/registry/n/apiextensions.k8s.io/customresourcedefinitions/-/%s/%s", c, name), text)
	if err == nil {
		err = r.store.Feed().WaitFor(r.Context(), resp.Header.Revision)
	}
	if err != nil {
		r.Fatal(err)
	}
}

// served returns the names of the resources that a cluster serves.
func (r *world) served(c cluster.Name) []string {
	var all []string
	for _, s := range r.resolver.Shape(c).All() {
		gr := s.Content.GroupResource()
		if found, ok := r.resolver.Find(c, gr); !ok || found.Served != s {
			r.Errorf("%s is in the shape of %s, and not found", gr, c)
		}
		all = append(all, gr.String()+"/"+s.Content.Definition.Status.AcceptedNames.ListKind)
	}
	slices.Sort(all)
	return all
}

func (r *world) expect(when string, c cluster.Name, want ...string) {
	r.Helper()
	if d := cmp.Diff(want, r.served(c)); d != "" {
		r.Errorf("%s, %s serves (-want +got):\n%s", when, c, d)
	}
}

// A definition is served when its creation is answered, in its cluster only. Equal definitions
// share a content, and equal sets of definitions share a shape.
func TestDefinitionsAreShared(t *testing.T) {
	r := newWorld(t, t.TempDir(), nil)
	foos, bars := called("foos foo Foo FooList"), called("bars bar Bar BarList")
	r.create("c1", foos)
	r.expect("after one", "c1", "foos.example.com/FooList")
	r.expect("after one elsewhere", "c2")
	if r.resolver.Shape("c2") != r.given || r.resolver.Shape("nobody") != r.given {
		t.Error("a cluster that defines nothing has a shape of its own")
	}
	r.create("c2", bars)
	r.create("c1", bars)
	if r.resolver.Shape("c1") == r.resolver.Shape("c2") {
		t.Error("clusters that serve different kinds share a shape")
	}
	r.create("c2", foos)
	if r.resolver.Shape("c1") != r.resolver.Shape("c2") {
		t.Error("clusters that serve the same have two shapes")
	}
	one, _ := r.resolver.Find("c1", schema.GroupResource{Group: "example.com", Resource: "foos"})
	two, _ := r.resolver.Find("c2", schema.GroupResource{Group: "example.com", Resource: "foos"})
	if one.Content != two.Content || one.Evidence[0] == two.Evidence[0] || one.Evidence[0].Revision == 0 {
		t.Errorf("two contents of equal definitions, or the same evidence: %v and %v", one.Evidence, two.Evidence)
	}
	shared := r.resolver.Shape("c1")
	r.change(r.crds, "c1", foos.Name, func(d *apiextensions.CustomResourceDefinition) { d.Labels = map[string]string{"a": "b"} })
	if again, _ := r.resolver.Find("c1", one.Content.GroupResource()); again.Content != one.Content || again.Evidence[0].Revision <= one.Evidence[0].Revision || r.resolver.Shape("c1") != shared {
		t.Error("labels make another content")
	}
	r.change(r.crds, "c1", foos.Name, func(d *apiextensions.CustomResourceDefinition) { d.Spec.Names.ListKind = "FuList" })
	r.expect("after a change", "c1", "bars.example.com/BarList", "foos.example.com/FuList")
	r.expect("after a change elsewhere", "c2", "bars.example.com/BarList", "foos.example.com/FooList")
	if r.resolver.Shape("c1") == shared || r.resolver.Shape("c2") != shared {
		t.Error("a change in one cluster changes the other's shape, or not its own")
	}
	for _, c := range []cluster.Name{"c1", "c2"} {
		for _, crd := range []*definition{foos, bars} {
			if _, _, err := r.crds.Delete(r.in(c), crd.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if !r.Deleting(c, crd.Name) {
				t.Errorf("%s in %s is not known to be deleted", crd.Name, c)
			}
			r.change(r.crds, c, crd.Name, func(d *apiextensions.CustomResourceDefinition) { d.Finalizers = nil })
		}
		r.expect("after all are deleted", c)
	}
	unused := weak.Make(shared)
	one, two, shared = catalog.Found{}, catalog.Found{}, nil
	for r.decoded.Len()+r.contents.Len() > 0 || unused.Value() != nil { // or the test times out
		runtime.GC()
		runtime.Gosched()
	}
	if len(r.clusters) != 0 {
		t.Errorf("clusters without definitions are kept: %v", slices.Collect(maps.Keys(r.clusters)))
	}
}

// Undecodable definitions are not served. They do not affect other definitions, now and after a
// restart.
func TestUndecodableDefinitions(t *testing.T) {
	dir := t.TempDir()
	r := newWorld(t, dir, nil)
	r.create("c1", called("foos foo Foo FooList"))
	r.create("c1", called("bars bar Bar BarList"))
	r.create("c2", called("foos foo Foo FooList"))
	good, err := r.store.RawClient().Get(t.Context(), "/registry/n/apiextensions.k8s.io/customresourcedefinitions/-/c1/foos.example.com")
	if err != nil || len(good.Kvs) != 1 {
		t.Fatal(good, err)
	}
	value := string(good.Kvs[0].Value)
	for i, bad := range []string{
		"", "nonsense", "{", value[:len(value)/2], strings.Replace(value, `"spec":{`, `"spec":["`, 1),
		strings.Replace(value, `"versions":[`, `"versions":[17,`, 1), strings.Replace(value, `"group":"example.com"`, `"group":{}`, 1),
		strings.Replace(value, `"acceptedNames":{`, `"acceptedNames":"`, 1),
	} {
		r.bytes("c1", "foos.example.com", bad)
		r.expect(fmt.Sprintf("with bad value %d", i), "c1", "bars.example.com/BarList")
		r.expect("elsewhere", "c2", "foos.example.com/FooList")
		r.create("c1", called(fmt.Sprintf("x%d x X%d X%dList", i, i, i)))
		r.bytes("c1", "foos.example.com", value)
		if _, ok := r.resolver.Find("c1", schema.GroupResource{Group: "example.com", Resource: "foos"}); !ok {
			t.Errorf("after bad value %d: a good one is not served", i)
		}
		r.bytes("c1", fmt.Sprintf("x%d.example.com", i), "bad")
	}
	r.bytes("c1", "foos.example.com", "nonsense")
	r.caches.Close()
	r.store.Close()
	r = newWorld(t, dir, nil)
	r.expect("after a restart", "c1", "bars.example.com/BarList")
	r.expect("elsewhere, after a restart", "c2", "foos.example.com/FooList")
}

// Reset and Done replace the definitions with those applied between them, and end watches whose
// definition has changed.
func TestDefinitionsAreRebuilt(t *testing.T) {
	r := newWorld(t, t.TempDir(), nil)
	foos := schema.GroupResource{Group: "example.com", Resource: "foos"}
	r.create("c1", called("foos foo Foo FooList"))
	r.create("c1", called("bars bar Bar BarList"))
	r.create("c2", called("foos foo Foo FooList"))
	s1, _ := r.resolver.Find("c1", foos)
	s2, _ := r.resolver.Find("c2", foos)
	bars, _ := r.resolver.Find("c1", schema.GroupResource{Group: "example.com", Resource: "bars"})
	gone, done1 := r.resolver.WatchContext(t.Context(), "c1", s1)
	defer done1()
	stays, done2 := r.resolver.WatchContext(t.Context(), "c2", s2)
	defer done2()
	changed, done3 := r.resolver.WatchContext(t.Context(), "c1", bars)
	defer done3()
	r.Reset()
	r.expect("during a rebuild", "c1", "bars.example.com/BarList", "foos.example.com/FooList")
	renamed, err := catalog.NewContent(settle(t, called("bars bar Baz BazList")))
	if err != nil {
		t.Fatal(err)
	}
	kept, ok := r.row("c2", "foos.example.com")
	if !ok || r.put("c1", row{"bars.example.com", 7, false, &decodedDefinition{content: renamed, group: "example.com"}}) || r.put("c2", kept) {
		t.Fatal("a rebuild is in use before it ends")
	}
	r.Done()
	r.expect("after a rebuild", "c1", "bars.example.com/BazList")
	r.expect("after a rebuild, elsewhere", "c2", "foos.example.com/FooList")
	<-changed.Done()
	<-gone.Done() // a moment later
	if stays.Err() != nil {
		t.Error("a request that nothing changed for has ended")
	}
	late, done4 := r.resolver.WatchContext(t.Context(), "c1", s1)
	defer done4()
	if late.Err() == nil {
		t.Error("a request for what has gone begins")
	}
}

// Built-in resources take precedence over definitions of a cluster.
func TestGivenComesFirst(t *testing.T) {
	dir := t.TempDir()
	r := newWorld(t, dir, nil)
	r.create("c1", called("foos foo Other OtherList"))
	r.expect("before", "c1", "foos.example.com/OtherList")
	r.caches.Close()
	r.store.Close()
	content, err := catalog.NewContent(called("foos foo Foo FooList"))
	if err != nil {
		t.Fatal(err)
	}
	r = newWorld(t, dir, catalog.NewShape(catalog.Served{Content: content, Identity: "secret"}))
	r.expect("with what is given", "c1", "foos.example.com/FooList")
	s, ok := r.resolver.Find("c1", content.GroupResource())
	if !ok || len(s.Evidence) != 0 || s.Identity != "secret" {
		t.Errorf("found %+v", s)
	}
	ctx, done := r.resolver.WatchContext(t.Context(), "c1", s)
	r.change(r.crds, "c1", "foos.example.com", func(d *apiextensions.CustomResourceDefinition) { d.Spec.Names.ListKind = "AgainList" })
	if ctx.Err() != nil {
		t.Error("a watch of what is given depends on what is defined")
	}
	done()
	made := r.create("c2", called("bars foo Bar BarList"))
	if got := conditionsOf(made)[apiextensionsv1.NamesAccepted]; got.Reason != "SingularConflict" {
		t.Errorf("the name of what is given is accepted for another: %+v", got)
	}
	r.expect("with a name that is given", "c2", "foos.example.com/FooList")
}

// Accepted names that the spec does not have are not served.
func TestForgedStatus(t *testing.T) {
	r := newWorld(t, t.TempDir(), nil)
	r.create("c1", called("foos foo Foo FooList"))
	r.create("c1", called("bars bar Bar BarList"))
	type crd = apiextensions.CustomResourceDefinition
	for name, forge := range map[string]func(*crd){
		"another's plural":   func(d *crd) { d.Status.AcceptedNames.Plural = "foos" },
		"a plural of nobody": func(d *crd) { d.Status.AcceptedNames.Plural = "bazzes" },
		"no names":           func(d *crd) { d.Status.AcceptedNames = apiextensions.CustomResourceDefinitionNames{} },
		"not established":    func(d *crd) { d.Status.Conditions = nil },
	} {
		r.change(r.status, "c1", "bars.example.com", forge)
		r.expect(name, "c1", "foos.example.com/FooList")
		got := r.change(r.crds, "c1", "bars.example.com", func(*crd) {})
		if conditionsOf(got)[apiextensionsv1.Established].Status != "True" || got.Status.AcceptedNames.Plural != "bars" {
			t.Errorf("%s: the next write does not settle it: %+v", name, got.Status)
		}
		r.expect("settled after "+name, "c1", "bars.example.com/BarList", "foos.example.com/FooList")
	}
	// Two resources with the same kind are both served.
	r.change(r.status, "c1", "bars.example.com", func(d *crd) { d.Status.AcceptedNames.Kind, d.Status.AcceptedNames.ListKind = "Foo", "FooList" })
	r.expect("another's kind", "c1", "bars.example.com/FooList", "foos.example.com/FooList")
}

// The name of a definition identifies its resource.
func FuzzDefinitionName(f *testing.F) {
	for _, s := range []string{"", ".", "foos", "foos.example.com", ".example.com", "foos.", "a..b", "a/b.c", "\x00", "ä.ö", strings.Repeat("a.", 200)} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, resource, group string) {
		gr := schema.GroupResource{Group: group, Resource: resource}
		if back := catalog.ResourceOfName(catalog.DefinitionName(gr)); !strings.Contains(resource, ".") && back != gr && group != catalog.CoreGroup {
			t.Errorf("%q became %q", gr, back)
		}
		if name := catalog.DefinitionName(catalog.ResourceOfName(resource)); name != resource && name != strings.TrimSuffix(resource, ".")+".core" {
			t.Errorf("%q became %q", resource, name)
		}
		d := &Definitions{clusters: map[cluster.Name]rows{}}
		crd := called("foos foo Foo FooList")
		crd.Name, crd.Spec.Group, crd.Spec.Names.Plural = resource, group, resource
		crd.Status.AcceptedNames = crd.Spec.Names
		content, err := catalog.NewContent(crd)
		if err != nil {
			t.Skip(err)
		}
		d.put("c1", row{name: resource, decodedDefinition: &decodedDefinition{content: content}})
		for _, gr := range []schema.GroupResource{gr, catalog.ResourceOfName(resource), {Group: catalog.CoreGroup, Resource: gr.Resource}} {
			if s, ok := d.Find("c1", gr); ok && s.Content.GroupResource() != gr {
				t.Errorf("%q is served as %q", gr, s.Content.GroupResource())
			}
			if d.Anywhere(gr) && content.GroupResource() != gr {
				t.Errorf("%q is there as %q", gr, content.GroupResource())
			}
		}
		d.put("c1", row{name: resource})
		if len(d.clusters) != 0 {
			t.Error("a row stays")
		}
	})
}

// A content does not depend on the form that a definition has in JSON.
func TestReadingsAreOfWhatIsStored(t *testing.T) {
	r := newWorld(t, t.TempDir(), nil)
	crd := settle(t, called("foos foo Foo FooList"))
	text, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	r.bytes("c1", crd.Name, string(text))
	r.bytes("c2", crd.Name, strings.ReplaceAll(string(text), `"scope":`, ` "scope" : `))
	if r.resolver.Shape("c1") != r.resolver.Shape("c2") || len(r.served("c1")) != 1 {
		t.Errorf("c1 serves %v, c2 %v", r.served("c1"), r.served("c2"))
	}
	runtime.KeepAlive(r)
}

// Definitions in the core group have their own names in results, and not those that are used for
// their validation.
func TestDefinitionsInTheCoreGroup(t *testing.T) {
	r := newWorld(t, t.TempDir(), nil)
	r.Reserve("", apiextensionsv1.CustomResourceDefinitionNames{Plural: "configmaps", Singular: "configmap", Kind: "ConfigMap", ListKind: "ConfigMapList", ShortNames: []string{"cm"}})
	in := func(names string) *definition {
		crd := called(names)
		crd.Name, crd.Spec.Group = strings.Fields(names)[0]+".core", ""
		return crd
	}
	made := r.create("c1", in("pods pod Pod PodList po"))
	r.expect("after one", "c1", "pods/PodList")
	if made.Spec.Group != "" || made.Name != "pods.core" || conditionsOf(made)[apiextensionsv1.Established].Status != "True" {
		t.Errorf("made %s in %q: %+v", made.Name, made.Spec.Group, made.Status)
	}
	r.create("c1", called("pods pod Pod PodList po"))
	r.expect("after one of the name elsewhere", "c1", "pods.example.com/PodList", "pods/PodList")
	for names, want := range map[string]string{
		"a configmap A AList":      "SingularConflict",
		"b b B BList cm":           "ShortNamesConflict",
		"c c ConfigMap CList":      "KindConflict",
		"d d D PodList":            "ListKindConflict",
		"configmaps e E EList":     "PluralConflict",
		"f f F FList configmapper": "NoConflicts",
	} {
		if got := conditionsOf(r.create("c1", in(names)))[apiextensionsv1.NamesAccepted]; got.Reason != want {
			t.Errorf("%s: %+v, want %s", names, got, want)
		}
	}
	changed := r.change(r.crds, "c1", "pods.core", func(d *apiextensions.CustomResourceDefinition) { d.Spec.Names.ShortNames = []string{"p"} })
	if changed.Name != "pods.core" || !slices.Equal(changed.Status.AcceptedNames.ShortNames, []string{"p"}) {
		t.Errorf("changed to %+v", changed)
	}
	for _, gr := range []schema.GroupResource{{Group: "core", Resource: "pods"}, {Group: "", Resource: "nodes"}} {
		if _, ok := r.resolver.Find("c1", gr); ok || r.Anywhere(gr) {
			t.Errorf("%q is served", gr)
		}
	}
	if pods := (schema.GroupResource{Resource: "pods"}); !r.Anywhere(pods) || catalog.ResourceOfName("pods.core") != pods {
		t.Error("pods are nowhere")
	}
}
