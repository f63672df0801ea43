package watchcache

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// An object is the namespace and name of an object in a cluster.
type object struct{ namespace, name string }

// A flavour is a way to serve objects. The same tests pass with each flavour.
type flavour struct {
	name       string
	root       string
	identities []string
	resource   func(identity string) keys.Resource
	// storages returns the storages of a resource. Any of them can serve any request.
	storages func(testing.TB, *served) []storage.Interface
	object   func(object, row) runtime.Object
	empty    func() runtime.Object
	list     func() runtime.Object
	value    func(runtime.Object) string
	// restless flavours have few caches, which often start and stop.
	restless bool
}

func natives() flavour {
	return flavour{
		name: "native", root: cmRoot, identities: []string{""},
		resource: func(string) keys.Resource { return keys.NativeResource(configMaps) },
		storages: func(t testing.TB, s *served) []storage.Interface { return []storage.Interface{configMapsOf(t, s)} },
		object: func(at object, r row) runtime.Object {
			cm := configMap(at.namespace, at.name, r.value)
			cm.Labels = r.labels()
			return cm
		},
		empty: storetest.EmptyConfigMap,
		list:  storetest.EmptyConfigMaps,
		value: func(o runtime.Object) string { return o.(*corev1.ConfigMap).Data["v"] },
	}
}

func configMapsOf(t testing.TB, s *served) storage.Interface {
	return storageOf(t, s.Natives(jsonConfig), configMaps, storetest.EmptyConfigMap, storetest.EmptyConfigMaps)
}

func customs() flavour {
	return flavour{
		name: "custom", root: storetest.WidgetsRoot, identities: []string{"", "1f0e", "2e7a"},
		resource: func(id string) keys.Resource { return keys.CustomResource(widgets, id) },
		storages: func(t testing.TB, s *served) []storage.Interface {
			return []storage.Interface{widgetsOf(t, s, "v1"), widgetsOf(t, s, "v2")}
		},
		object: widget,
		empty:  storetest.EmptyWidget, list: storetest.EmptyWidgets,
		value: func(o runtime.Object) string {
			v, _, _ := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "spec", "v")
			return v
		},
	}
}

// restless returns custom resources that often change between cold and warm.
func restless() flavour {
	f := customs()
	f.name, f.restless = "restless", true
	return f
}

func widget(at object, r row) runtime.Object {
	u := storetest.Widget(at.namespace, at.name, r.value)
	u.SetLabels(r.labels())
	return u
}

// widgetsOf returns the storage of one version of widgets.
func widgetsOf(t testing.TB, s *served, version string) storage.Interface {
	config := func(gr schema.GroupResource, _ runtime.Object) (*storagebackend.ConfigForResource, error) {
		return storagebackend.NewDefaultConfig("/", schemaCodec{unstructured.UnstructuredJSONScheme, version}).ForResource(gr), nil
	}
	return storageOf(t, s.Customs(config), widgets, storetest.EmptyWidget, storetest.EmptyWidgets)
}

// schemaCodec decodes versions v1 and v2 as one of them.
type schemaCodec struct {
	runtime.Codec
	version string
}

func (c schemaCodec) Identifier() runtime.Identifier { return runtime.Identifier(c.version) }

func (c schemaCodec) Encode(o runtime.Object, w io.Writer) error { return c.Codec.Encode(o, w) }

func (c schemaCodec) Decode(b []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, got, err := c.Codec.Decode(b, kind, into)
	if err != nil {
		return o, got, err
	}
	u := o.(*unstructured.Unstructured)
	if v := u.GetAPIVersion(); v != "example.com/v1" && v != "example.com/v2" {
		return nil, got, fmt.Errorf("unknown version %q", v)
	}
	u.SetAPIVersion("example.com/" + c.version)
	return u, got, nil
}

// A row is the state of an object in the model.
type row struct {
	value string
	red   bool
	rev   int64
}

func (r row) labels() map[string]string {
	if !r.red {
		return nil
	}
	return map[string]string{"colour": "red"}
}

// A space is a cluster, restricted to one identity. Its objects are independent of other
// spaces.
type space struct {
	cluster  cluster.Name
	identity string
}

func (s space) context() context.Context {
	return registry.WithIdentity(in(s.cluster), s.identity)
}

type change struct {
	space   space
	at      object
	row     row // its revision is that of the change
	deleted bool
}

// A world is a store with a model of it: the list of all changes.
type world struct {
	testing.TB
	flavour
	rand   *rand.Rand
	seed   uint64
	dir    string
	store  *served
	apis   []storage.Interface
	spaces []space
	log    []change
	ended  func()
	// encryption encrypts the values; nil for none.
	encryption value.ResourceTransformers
	epoch      values.Epoch
}

func (w *world) failf(format string, args ...any) {
	w.Helper()
	w.Fatalf("seed %d, %s: %s", w.seed, w.name, fmt.Sprintf(format, args...))
}

func (w *world) ok(err error, doing string, args ...any) {
	w.Helper()
	if err != nil {
		w.failf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// start opens the store, or reopens it.
func (w *world) start() {
	s := serve(w, here(store.Options{Dir: w.dir, Version: "1.36", NoSync: true, Encryption: w.encryption, Epoch: w.epoch}))
	w.store, w.apis, w.ended = s, w.storages(w, s), s.Close
	if w.restless {
		s.limits.objects, s.limits.caches, s.limits.idle, s.limits.sweep = 10, 2, 0, time.Hour
	}
	w.ok(s.Feed().Start(w.Context()), "start the feed")
}

func (w *world) api() storage.Interface { return w.apis[w.rand.IntN(len(w.apis))] }

// at returns the state of a space at a revision.
func (w *world) at(s space, rev int64) map[object]row {
	state := map[object]row{}
	for _, c := range w.log {
		if c.space != s || c.row.rev > rev {
			continue
		}
		if delete(state, c.at); !c.deleted {
			state[c.at] = c.row
		}
	}
	return state
}

func (w *world) last() int64 {
	if len(w.log) == 0 {
		return 0
	}
	return w.log[len(w.log)-1].row.rev
}

// lastOf returns the newest revision of a resource.
func (w *world) lastOf(s space) int64 {
	for _, c := range slices.Backward(w.log) {
		if c.space.identity == s.identity {
			return c.row.rev
		}
	}
	return 0
}

func (w *world) now(s space) map[object]row { return w.at(s, w.last()) }

func (w *world) key(o object) string { return w.root + "/" + o.namespace + "/" + o.name }

// record appends a change to the model.
func (w *world) record(s space, o object, r row, deleted bool, made runtime.Object) {
	r.rev = w.revision(made)
	if r.rev <= w.last() {
		w.failf("a change of %v in %v has revision %d, after %d", o, s, r.rev, w.last())
	}
	w.check(s, o, r, made)
	w.log = append(w.log, change{s, o, r, deleted})
}

// check compares a returned object with the model.
func (w *world) check(s space, o object, want row, got runtime.Object) {
	w.Helper()
	a, err := meta.Accessor(got)
	w.ok(err, "read %v", o)
	if cluster.Of(a) != s.cluster {
		w.failf("%v of %v says that it is in %q", o, s, cluster.Of(a))
	}
	have := row{w.value(got), a.GetLabels()["colour"] == "red", w.revision(got)}
	if (object{a.GetNamespace(), a.GetName()}) != o || have != want {
		w.failf("%v in %v: got %s/%s %+v, want %+v", o, s, a.GetNamespace(), a.GetName(), have, want)
	}
}

func (w *world) revision(o runtime.Object) int64 {
	rv, err := meta.NewAccessor().ResourceVersion(o)
	w.ok(err, "resource version")
	rev, err := strconv.ParseInt(rv, 10, 64)
	w.ok(err, "resource version of %v", o)
	return rev
}

// A choice is the selection of a list or watch.
type choice struct {
	namespace string
	red       bool
}

func (c choice) has(o object, r row) bool {
	return (c.namespace == "" || c.namespace == o.namespace) && (!c.red || r.red)
}

func (c choice) options(rv string) storage.ListOptions {
	o := everything(rv)
	if c.red {
		o.Predicate.Label = labels.SelectorFromSet(labels.Set{"colour": "red"})
		o.Predicate.GetAttrs = storetest.Attrs
	}
	return o
}

// request returns the context and key that a registry passes to a storage.
func (w *world) request(s space, c choice) (context.Context, string) {
	ctx := request.WithNamespace(s.context(), c.namespace)
	if c.namespace == "" {
		return ctx, w.root
	}
	return ctx, w.root + "/" + c.namespace
}

func filtered(state map[object]row, c choice) map[object]row {
	state = maps.Clone(state)
	maps.DeleteFunc(state, func(o object, r row) bool { return !c.has(o, r) })
	return state
}

// contents checks that all objects of a list belong to the space, and returns them.
func (w *world) contents(s space, list runtime.Object) map[object]row {
	got := map[object]row{}
	w.ok(meta.EachListItem(list, func(o runtime.Object) error {
		a, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		at := object{a.GetNamespace(), a.GetName()}
		if _, twice := got[at]; twice {
			return fmt.Errorf("%v is listed twice", at)
		}
		got[at] = row{w.value(o), a.GetLabels()["colour"] == "red", w.revision(o)}
		w.check(s, at, got[at], o)
		return nil
	}), "list of %v", s)
	return got
}

func (w *world) same(what string, got, want map[object]row) {
	w.Helper()
	if !maps.Equal(got, want) {
		w.failf("%s: got %v, want %v", what, got, want)
	}
}

// spoil writes invalid values directly to etcd: in clusters of their own, and at invalid
// keys.
func (w *world) spoil() {
	for _, id := range w.identities {
		prefix := w.store.Prefix() + w.resource(id).Prefix()
		good := func(namespace, name string, annotations map[string]string) string {
			o := w.object(object{namespace, name}, row{value: "not yours"})
			a, err := meta.Accessor(o)
			w.ok(err, "spoil")
			a.SetAnnotations(annotations)
			b, err := json.Marshal(o)
			w.ok(err, "spoil")
			return string(b)
		}
		for key, value := range map[string]string{
			"/bad1/ns0/o0": `{"metadata":{"name":"o0","namespace":"ns0"`,
			"/bad1/ns0/o1": `{"apiVersion":"example.com/v1","kind":"Widget","Metadata":{"name":"o1","namespace":"ns0"}}`,
			"/bad2/ns0/o2": `{"apiVersion":"example.com/v9","kind":"Widget","metadata":{"name":"o2","namespace":"ns0"}}`,
			"/bad3/ns0/o3": good("ns0", "o4", nil),
			"/bad4/ns1/o0": good("ns0", "o0", nil),
			"/bad5/ns0/o0": "",
			"/forged/n/o0": good("n", "o0", map[string]string{cluster.Annotation: string(w.spaces[0].cluster), values.Undecodable: "hidden"}),
			"/lone":        good("ns0", "o0", nil),
			"//ns0/o0":     good("ns0", "o0", nil),
			"/bad6/":       good("ns0", "o0", nil),
			"/bad6/a/b/c":  good("ns0", "o0", nil),
			"/bad6/a//c":   good("ns0", "o0", nil),
		} {
			_, err := w.store.RawClient().Put(w.Context(), prefix+key, value)
			w.ok(err, "spoil")
		}
	}
}

func seeds(t *testing.T) []uint64 {
	if testing.Short() {
		return []uint64{1}
	}
	if !storetest.Nightly() {
		return []uint64{1, rand.Uint64()}
	}
	return []uint64{1, 2, 3, rand.Uint64(), rand.Uint64()}
}
