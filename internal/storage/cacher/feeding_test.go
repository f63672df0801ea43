package cacher

import (
	"testing"

	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

var (
	configMaps = keys.NativeResource(storetest.ConfigMaps())
	codec      = values.Codec{Codec: storetest.JSON()}
)

// open returns a store with some clusters.
func open(t *testing.T, clusters ...cluster.Name) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.Values().Register(configMaps, codec)
	storetest.StartFeeds(t, s)
	for _, c := range clusters {
		if _, err := s.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// create creates a config map in cluster c1, and returns its revision.
func create(t *testing.T, s *store.Store, name, value string) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), []store.Write{{Resource: configMaps, Cluster: "c1", Object: storetest.ConfigMap("ns", name, value)}})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// start starts a cache of the config maps.
func start(t *testing.T, s *store.Store, g *Group) *Cache {
	t.Helper()
	c, err := g.Start(Options{
		Objects: store.Objects{
			Config: storagebackend.NewDefaultConfig("/", codec).ForResource(configMaps.GroupResource()), Root: configMaps.Prefix(),
			Codec: s.CacheCodec(codec, storetest.EmptyConfigMap, nil), New: storetest.EmptyConfigMap, NewList: storetest.EmptyConfigMaps,
		},
		Codec: codec.Codec, Attrs: WithCluster(storetest.Attrs),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// A cache is current as soon as it has the last change below its own prefix.
func TestCurrentRevision(t *testing.T) {
	s := open(t, "c1")
	c := start(t, s, New(s, func() int64 { return 0 }))
	want := create(t, s, "x", "")
	for _, c := range []cluster.Name{"c2", "c3"} { // changes of other resources
		if _, err := s.Commit(t.Context(), nil, store.Fence{Cluster: c, State: store.Active}); err != nil {
			t.Fatal(err)
		}
	}
	if rev, err := c.feed.GetCurrentResourceVersion(t.Context()); err != nil || int64(rev) != want || s.Latest() == want {
		t.Errorf("current revision %d of %d, %v, want %d", rev, s.Latest(), err, want)
	}
}
