package store

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

const cmRoot = storetest.ConfigMapsRoot

var (
	configMaps = storetest.ConfigMaps()
	widgets    = storetest.Widgets()
	configMap  = storetest.ConfigMap
	widget     = storetest.Widget
	in         = storetest.In
	everything = storetest.Everything
)

// NewStorage returns the storage of a registry. Package registry, which imports this one, sets it.
var NewStorage func(s *Store, r keys.Resource, root string, inner storage.Interface) storage.Interface

// The tests also pass with an external etcd, except those about files of the embedded one.
// make check runs a sample.
func TestAllOutside(t *testing.T) {
	storetest.RunOutside(t, storetest.Selection{
		Sample: "Purged|Fence|Guard|Commit|Current|Ledger", Want: 7, AtNight: 40,
		Skip: "Outside|LostLease|Several|Killed|Writer|DamagedFiles|Directory|Format|OpenCalledOff|FirstStart|Used|FailedOpen|InOneProcess|FullComesBack",
	})
}

// here returns o for the etcd of this run.
func here(o Options) Options {
	if servers, prefix := storetest.Outside(o.Dir); servers != nil {
		o.Prefix, o.Etcd.Servers = prefix, servers
		o.Etcd.CompactionInterval = -1 // tests compact explicitly
	}
	return o
}

// open starts a store in dir with storage for config maps.
func open(t testing.TB, dir string) (*Store, storage.Interface, func()) {
	t.Helper()
	s, err := Open(t.Context(), here(Options{Dir: dir, Version: "1.36", NoSync: true}))
	if err != nil {
		t.Fatal(err)
	}
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	return s, cm, s.Close
}

// several opens stores on one etcd, as several processes would do.
func several(t testing.TB, n int, o etcdtest.Options) (*etcdtest.Cluster, []*Store) {
	t.Helper()
	return severalAt(t, n, o, nil)
}

// severalAt is several with the clock that measures the age of data.
func severalAt(t testing.TB, n int, o etcdtest.Options, now func() time.Time) (*etcdtest.Cluster, []*Store) {
	t.Helper()
	members := etcdtest.Start(t, o)
	var all []*Store
	for range n {
		s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", Etcd: etcd.Config{Servers: members.Servers()}, now: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		all = append(all, s)
	}
	return members, all
}

// create creates clusters.
func create(t testing.TB, s *Store, names ...cluster.Name) {
	t.Helper()
	for _, c := range names {
		if _, err := s.Commit(t.Context(), nil, Fence{Cluster: c, State: Active}); err != nil {
			t.Fatal(err)
		}
	}
}

// configMapsOf returns the storage of config maps in etcd.
func configMapsOf(t testing.TB, s *Store) storage.Interface {
	t.Helper()
	r, codec := keys.NativeResource(configMaps), values.Codec{Codec: storetest.JSON()}
	s.Values().Register(r, codec)
	return storageOf(t, s, r, Objects{Root: cmRoot, Codec: codec, New: storetest.EmptyConfigMap, NewList: storetest.EmptyConfigMaps})
}

// widgetsOf returns the storage of widgets in etcd.
func widgetsOf(t testing.TB, s *Store) storage.Interface {
	t.Helper()
	codec := values.Codec{Codec: unstructured.UnstructuredJSONScheme}
	return storageOf(t, s, keys.CustomResource(widgets, ""), Objects{Root: storetest.WidgetsRoot, Codec: codec, New: storetest.EmptyWidget, NewList: storetest.EmptyWidgets})
}

func storageOf(t testing.TB, s *Store, r keys.Resource, o Objects) storage.Interface {
	t.Helper()
	o.Config = storagebackend.NewDefaultConfig("/", o.Codec).ForResource(r.GroupResource())
	client := s.Client()
	direct, err := s.Etcd3(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		direct.Close()
		_ = client.Close() // reports only that its context ended
	})
	return NewStorage(s, r, o.Root, direct)
}
