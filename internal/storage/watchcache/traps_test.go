package watchcache

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// both runs a test with built-in objects and with custom resources.
func both(t *testing.T, test func(*testing.T, *world)) {
	for _, f := range []flavour{natives(), customs()} {
		t.Run(f.name, func(t *testing.T) {
			w := &world{TB: t, flavour: f, dir: t.TempDir()}
			w.start()
			defer func() { w.ended() }()
			test(t, w)
		})
	}
}

func (w *world) put(s space, at object, value string) runtime.Object {
	w.Helper()
	out := w.empty()
	w.ok(w.apis[0].Create(s.context(), w.key(at), w.object(at, row{value: value}), out, 0), "create %v in %v", at, s)
	return out
}

func (w *world) listed(ctx context.Context, key string, o storage.ListOptions) ([]string, error) {
	list := w.flavour.list()
	if err := w.apis[0].GetList(ctx, key, o, list); err != nil {
		return nil, err
	}
	return names(w, list), nil
}

// names returns cluster/name of each object.
func names(t testing.TB, list runtime.Object) []string {
	t.Helper()
	all := []string{}
	if err := meta.EachListItem(list, func(o runtime.Object) error {
		a, err := meta.Accessor(o)
		if err == nil {
			all = append(all, string(cluster.Of(a))+"/"+a.GetName())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	e, ok := received(t, w)
	if !ok {
		t.Fatal("the watch ended")
	}
	return e
}

// received returns the next event of a watch. It is false when the watch has ended.
func received(t testing.TB, w watch.Interface) (watch.Event, bool) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		e.Object = bare(e.Object)
		return e, ok
	case <-time.After(storetest.Patience):
		t.Fatal("no event")
	}
	return watch.Event{}, false
}

func named(e watch.Event) string {
	a, err := meta.Accessor(e.Object)
	if err != nil {
		return fmt.Sprintf("%s %v", e.Type, e.Object)
	}
	return fmt.Sprintf("%s %s/%s", e.Type, cluster.Of(a), a.GetName())
}

func expect(t testing.TB, w watch.Interface, want ...string) {
	t.Helper()
	for _, want := range want {
		if got := named(next(t, w)); got != want {
			t.Fatalf("event: got %s, want %s", got, want)
		}
	}
}

// After a restart the caches contain the objects of one name in all clusters.
func TestRestartWithManyClusters(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		var want []string
		for i := range 40 {
			c := cluster.Name(fmt.Sprintf("c%02d", i))
			create(t, w.store, c)
			w.put(space{cluster: c}, object{"default", "same"}, string(c))
			want = append(want, string(c)+"/same")
		}
		w.ended()
		w.start()
		got, err := w.listed(in(cluster.All), w.root, everything("0"))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("after a restart: got %v, %v, want %v", got, err, want)
		}
		watched, err := w.apis[0].Watch(in(cluster.All), w.root, everything("0"))
		if err != nil {
			t.Fatal(err)
		}
		defer watched.Stop()
		got = nil
		for range want {
			got = append(got, strings.TrimPrefix(named(next(t, watched)), "ADDED "))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("a watch after a restart begins with %v", got)
		}
	})
}

// A request to all clusters can select a namespace or an object, and so can a watch.
func TestScopes(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "ns", "c2") // a cluster with the name of a namespace
		for _, at := range []object{{"ns", "x"}, {"ns", "ns"}, {"other", "x"}} {
			w.put(space{cluster: "c2"}, at, "")
			w.put(space{cluster: "ns"}, at, "")
		}
		for _, test := range []struct {
			key, namespace string
			field          fields.Selector
			want           []string
		}{
			{"", "", fields.Everything(), []string{"c2/ns", "c2/x", "c2/x", "ns/ns", "ns/x", "ns/x"}},
			{"", "", nil, []string{"c2/ns", "c2/x", "c2/x", "ns/ns", "ns/x", "ns/x"}},
			{"/ns", "ns", fields.Everything(), []string{"c2/ns", "c2/x", "ns/ns", "ns/x"}},
			{"/ns/x", "ns", fields.Everything(), []string{"c2/x", "ns/x"}},
			{"/ns/ns", "ns", nil, []string{"c2/ns", "ns/ns"}},
			{"/ns/x", "", fields.Everything(), []string{"c2/x", "ns/x"}},
			{"", "", fields.OneTermEqualSelector("metadata.name", "ns"), []string{"c2/ns", "ns/ns"}},
			{"/other", "other", fields.OneTermEqualSelector("metadata.name", "ns"), []string{}},
		} {
			ctx := request.WithNamespace(in(cluster.All), test.namespace)
			o := everything("")
			if test.field != nil {
				o.Predicate.Field = test.field
			}
			got, err := w.listed(ctx, w.root+test.key, o)
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("list of %q in %q where %v: got %v, %v, want %v", test.key, test.namespace, test.field, got, err, test.want)
			}
			o = everything("0")
			o.Predicate.Field = test.field
			if test.field == nil {
				o.Predicate.Field = fields.Everything()
			}
			watched, err := w.apis[0].Watch(ctx, w.root+test.key, o)
			if err != nil {
				t.Fatal(err)
			}
			got = []string{}
			for range test.want {
				got = append(got, strings.TrimPrefix(named(next(t, watched)), "ADDED "))
			}
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("watch of %q in %q where %v: got %v, want %v", test.key, test.namespace, test.field, got, test.want)
			}
			watched.Stop()
		}
		w.oneObject(t)
	})
}

// oneObject watches one object while objects of the same name in other clusters change.
func (w *world) oneObject(t *testing.T) {
	o := everything("0")
	o.Recursive = false
	o.Predicate.Field = fields.OneTermEqualSelector("metadata.name", "x")
	watched, err := w.apis[0].Watch(request.WithNamespace(in("c2"), "ns"), w.root+"/ns/x", o)
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	expect(t, watched, "ADDED c2/x")
	for _, c := range []cluster.Name{"ns", "c2"} {
		for _, at := range []object{{"other", "x"}, {"ns", "ns"}, {"ns", "x"}} {
			if err := w.apis[0].Delete(in(c), w.key(at), w.empty(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect(t, watched, "DELETED c2/x")
}

// A value that cannot be decoded affects only its own cluster, where errors name it. Other
// clusters work as before, also after a restart.
func TestUndecodable(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1", "bad")
		at := object{"ns", "x"}
		w.put(space{cluster: "c1"}, at, "good")
		w.put(space{cluster: "bad"}, at, "good")
		var watches []watch.Interface
		for _, c := range []cluster.Name{cluster.All, "c1", "bad"} {
			watched, err := w.apis[0].Watch(in(c), w.root, everything("0"))
			if err != nil {
				t.Fatal(err)
			}
			defer watched.Stop()
			watches = append(watches, watched)
		}
		first := []string{named(next(t, watches[0])), named(next(t, watches[0]))}
		slices.Sort(first)
		if !slices.Equal(first, []string{"ADDED bad/x", "ADDED c1/x"}) {
			t.Errorf("all clusters: %v", first)
		}
		expect(t, watches[1], "ADDED c1/x")
		expect(t, watches[2], "ADDED bad/x")
		key := w.store.Prefix() + w.resource("").Key("bad", at.namespace, at.name).Path()
		if _, err := w.store.RawClient().Put(t.Context(), key, `{"metadata":{"name":"x",`); err != nil {
			t.Fatal(err)
		}
		expect(t, watches[0], "DELETED bad/x")
		e := next(t, watches[2])
		if status, ok := e.Object.(*metav1.Status); !ok || !strings.Contains(status.Message, "ns/x") {
			t.Errorf("watch of the object: %v", e)
		}
		if _, more := received(t, watches[2]); more {
			t.Error("the watch goes on after an error")
		}
		w.badObject(t, at, false)
		w.put(space{cluster: "c1"}, object{"ns", "y"}, "")
		expect(t, watches[0], "ADDED c1/y")
		expect(t, watches[1], "ADDED c1/y")
		w.ended()
		w.start()
		w.badObject(t, at, false)
		w.repaired(t, at)
	})
}

// badObject checks the errors for an object that cannot be decoded. If that may pass, lists of
// all clusters fail.
func (w *world) badObject(t *testing.T, at object, passes bool) {
	t.Helper()
	for _, rv := range []string{"", "0"} {
		if got, err := w.listed(in("bad"), w.root, everything(rv)); err == nil || !strings.Contains(err.Error(), "ns/x") {
			t.Errorf("list at %q of a cluster with a bad object: %v, %v", rv, got, err)
		}
		if got, err := w.listed(in(cluster.All), w.root, everything(rv)); (err != nil) != passes || slices.Contains(got, "bad/x") {
			t.Errorf("list at %q of all clusters: %v, %v", rv, got, err)
		}
		if got, err := w.listed(in("c1"), w.root, everything(rv)); err != nil || len(got) == 0 {
			t.Errorf("list at %q of another cluster: %v, %v", rv, got, err)
		}
		err := w.apis[0].Get(in("bad"), w.key(at), storage.GetOptions{ResourceVersion: rv}, w.empty())
		if err == nil || storage.IsNotFound(err) || !strings.Contains(err.Error(), "x") {
			t.Errorf("get at %q: %v", rv, err)
		}
	}
	touched := false
	err := w.apis[0].GuaranteedUpdate(in("bad"), w.key(at), w.empty(), true, nil, func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		touched = true
		return in, nil, nil
	}, nil)
	if err == nil || touched {
		t.Errorf("an object that cannot be read was changed: %v", err)
	}
	err = w.apis[0].Delete(in("bad"), w.key(at), w.empty(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if err == nil {
		t.Error("an object that cannot be read was deleted")
	}
}

// repaired deletes the bad object without reading it, and creates a good one.
func (w *world) repaired(t *testing.T, at object) {
	_, rev, err := w.store.Read(t.Context(), w.resource("").Key("bad", at.namespace, at.name))
	if err == nil || rev == 0 {
		t.Errorf("read of a bad object: revision %d, %v", rev, err)
	}
	if _, err = w.store.Commit(t.Context(), []store.Write{{Resource: w.resource(""), Cluster: "bad", Object: w.object(at, row{}), Expect: rev, Delete: true}}); err != nil {
		t.Fatal(err)
	}
	w.put(space{cluster: "bad"}, at, "again")
	eventually(t, "the list of a repaired cluster is complete", func() bool {
		got, err := w.listed(in("bad"), w.root, everything(""))
		return err == nil && slices.Equal(got, []string{"bad/x"})
	})
}

// Clients cannot set the annotations that mark an object as undecodable or as one of another
// cluster.
func TestMarksCannotBeForged(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1", "c2")
		_, _, _ = w.store.CacheCodec(values.Codec{Codec: storetest.JSON()}, w.empty, nil).Decode([]byte("undecodable"), nil, nil) // now objects are searched for marks
		o := w.object(object{"ns", "x"}, row{})
		a, _ := meta.Accessor(o)
		a.SetAnnotations(map[string]string{values.Undecodable: "hide me", cluster.Annotation: "c2", "mine": "kept"})
		out := w.empty()
		if err := w.apis[0].Create(in("c1"), w.root+"/ns/x", o, out, 0); err != nil {
			t.Fatal(err)
		}
		if a, _ := meta.Accessor(out); cluster.Of(a) != "c1" || len(a.GetAnnotations()) != 2 || a.GetAnnotations()["mine"] != "kept" {
			t.Errorf("annotations: %v", a.GetAnnotations())
		}
		if got, err := w.listed(in(cluster.All), w.root, everything("")); err != nil || !slices.Equal(got, []string{"c1/x"}) {
			t.Errorf("list of all clusters: %v, %v", got, err)
		}
		resp, err := w.store.RawClient().Get(t.Context(), w.store.Prefix()+w.resource("").Key("c1", "ns", "x").Path())
		if err != nil || strings.Contains(string(resp.Kvs[0].Value), "kcp.io/") {
			t.Errorf("stored: %s, %v", resp.Kvs[0].Value, err)
		}
	})
}

// A watch from a future revision gets an expired error, as after a restore.
func TestWatchFromTheFuture(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1")
		for _, c := range []cluster.Name{"c1", cluster.All} {
			if _, err := w.apis[0].Watch(in(c), w.root, everything("1000000")); !apierrors.IsResourceExpired(err) {
				t.Errorf("watch of %s: %v", c, err)
			}
		}
	})
}

// Reads wait for a cache that is being filled.
func TestUnreadyCache(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1")
		w.put(space{cluster: "c1"}, object{"ns", "x"}, "")
		for range 5 {
			w.ended()
			w.start() // a cache that was just created is rarely ready
			watched, err := w.apis[0].Watch(in("c1"), w.root, everything("0"))
			if err != nil {
				t.Fatal(err)
			}
			expect(t, watched, "ADDED c1/x")
			watched.Stop()
		}
		ctx, cancel := context.WithCancel(in("c1"))
		cancel()
		if err := starting(ctx.Err()); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("a cache that did not start in time: %v", err)
		}
	})
}

// A continue token shows nothing of its cluster when it is used in another cluster.
func TestContinueInAnotherCluster(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1", "c2")
		for i := range 4 {
			w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("secret", i)}, "")
			w.put(space{cluster: "c2"}, object{"ns", fmt.Sprint("z", i)}, "")
		}
		for _, from := range []cluster.Name{"c1", cluster.All} {
			o := everything("")
			o.Predicate.Limit = 2
			list := w.flavour.list()
			w.ok(w.apis[0].GetList(in(from), w.root, o, list), "first page")
			m, _ := meta.ListAccessor(list)
			want := map[cluster.Name]int64{"c1": 2, cluster.All: 6}[from]
			if left := m.GetRemainingItemCount(); left == nil || *left != want {
				t.Errorf("%s: remaining %v, want %d", from, left, want)
			}
			o.Predicate.Continue = m.GetContinue()
			got, err := w.listed(in("c2"), w.root, o)
			for _, name := range got {
				if !strings.HasPrefix(name, "c2/z") {
					t.Errorf("a token of %s shows %v in c2, %v", from, got, err)
				}
			}
		}
	})
}

// quiet ignores requests for progress.
type quiet struct{ clientv3.Watcher }

func (quiet) RequestProgress(context.Context) error { return nil }

type counted struct {
	kubernetes.Interface
	lists *atomic.Int64
}

func (c counted) List(ctx context.Context, prefix string, o kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	c.lists.Add(1)
	return c.Interface.List(ctx, prefix, o)
}

// The cache answers consistent lists without progress reports of etcd, despite writes to
// other resources and many watches that are not read.
func TestConsistentListAsksNothing(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, here(store.Options{Dir: dir, Version: "1.36", NoSync: true}))
	defer s.Close()
	var lists atomic.Int64
	s.cachers.Client = func() *kubernetes.Client {
		c := s.Store.Client()
		c.Client.Watcher, c.Kubernetes = quiet{c.Client.Watcher}, counted{c.Kubernetes, &lists}
		return c
	}
	cm, w := configMapsOf(t, s), widgetsOf(t, s, "v1")
	storetest.StartFeeds(t, s)
	create(t, s, "c1", "c2")
	defer s.customs.done(warmed(t, w, keys.CustomResource(widgets, "")))
	kinds := []struct {
		api  storage.Interface
		f    flavour
		root string
	}{{cm, natives(), cmRoot}, {w, customs(), "/c/example.com/widgets"}}
	for _, k := range kinds { // after the caches are filled
		if err := k.api.GetList(in("c1"), k.root, everything(""), k.f.list()); err != nil {
			t.Fatal(err)
		}
		for range 250 {
			stale, err := k.api.Watch(in("c2"), k.root, everything(fmt.Sprint(s.Latest())))
			if err != nil {
				t.Fatal(err)
			}
			defer stale.Stop()
		}
	}
	filled := lists.Load()
	for i := range 100 {
		for j, k := range kinds { // the other kind is written before this one is listed
			other, at := kinds[1-j], object{"ns", fmt.Sprint("o", i)}
			if err := other.api.Create(in("c2"), other.root+"/ns/"+at.name, other.f.object(at, row{}), nil, 0); err != nil {
				t.Fatal(err)
			}
			list := k.f.list()
			if err := k.api.GetList(in("c2"), k.root, everything(""), list); err != nil {
				t.Fatal(err)
			}
			if n := meta.LenList(list); n != i+j {
				t.Fatalf("list %d of %s has %d objects, want %d", i, k.f.name, n, i+j)
			}
		}
	}
	if n := lists.Load() - filled; n != 0 {
		t.Errorf("%d lists were read from etcd, as the cache did not know in time that it was current", n)
	}
}
