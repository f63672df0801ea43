package watchcache

import (
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
)

const cmRoot = storetest.ConfigMapsRoot

var (
	configMaps = storetest.ConfigMaps()
	widgets    = storetest.Widgets()
	configMap  = storetest.ConfigMap
	in         = storetest.In
	everything = storetest.Everything
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// The tests also pass with an external etcd, except those about files of the embedded one.
// make check runs a sample.
func TestAllOutside(t *testing.T) {
	storetest.RunOutside(t, storetest.Selection{
		Sample: "InitialEvents|Resume|ContinueInAnother", Want: 5, AtNight: 45,
		Skip: "Outside|ServerHangs|EtcdAway|TestFull|Restored|Several|Prefixes|ForceNew|Leaderless",
	})
}

// A served is a store with its caches.
type served struct {
	*store.Store
	*Caches
}

// Close closes the caches and the store.
func (s *served) Close() {
	s.Caches.Close()
	s.Store.Close()
}

// serve opens a store and its caches. The feed does not run yet.
func serve(t testing.TB, o store.Options) *served {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(t.Context(), s, Options{})
	if err != nil {
		s.Close()
		t.Fatal(err)
	}
	c.cachers.ProbeEvery = 10 * time.Millisecond
	return &served{s, c}
}

// here returns o for the etcd of this run.
func here(o store.Options) store.Options {
	if servers, prefix := storetest.Outside(o.Dir); servers != nil {
		o.Prefix, o.Etcd.Servers = prefix, servers
		o.Etcd.CompactionInterval = -1 // tests compact explicitly
	}
	return o
}

// open starts a store in dir with storage for config maps.
func open(t testing.TB, dir string) (*served, storage.Interface, func()) {
	t.Helper()
	s := serve(t, here(store.Options{Dir: dir, Version: "1.36", NoSync: true}))
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	return s, cm, s.Close
}

// several opens stores on one etcd, as several processes would do.
func several(t testing.TB, n int, o etcdtest.Options) (*etcdtest.Cluster, []*served) {
	t.Helper()
	members := etcdtest.Start(t, o)
	var all []*served
	for range n {
		s := serve(t, store.Options{Dir: t.TempDir(), Version: "1.36", Etcd: etcd.Config{Servers: members.Servers()}})
		t.Cleanup(s.Close)
		all = append(all, s)
	}
	return members, all
}

// create creates clusters.
func create(t testing.TB, s *served, names ...cluster.Name) {
	t.Helper()
	for _, c := range names {
		if _, err := s.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			t.Fatal(err)
		}
	}
}

func storageOf(t testing.TB, g generic.RESTOptionsGetter, gr schema.GroupResource, newFunc, newList func() runtime.Object) storage.Interface {
	t.Helper()
	o, err := g.GetRESTOptions(gr, newFunc())
	if err != nil {
		t.Fatal(err)
	}
	st, destroy, err := o.Decorator(o.StorageConfig, o.ResourcePrefix, nil, newFunc, newList, storetest.Attrs, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return st
}

func jsonConfig(gr schema.GroupResource, _ runtime.Object) (*storagebackend.ConfigForResource, error) {
	return storagebackend.NewDefaultConfig("/", storetest.JSON()).ForResource(gr), nil
}

// bare returns the object of an event without the wrapper by which a cache shares its
// encodings.
func bare(o runtime.Object) runtime.Object {
	if c, ok := o.(runtime.CacheableObject); ok {
		return c.GetObject()
	}
	return o
}
