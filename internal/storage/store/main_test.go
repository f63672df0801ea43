package store_test

import (
	"os"
	"testing"

	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	store.NewStorage = func(s *store.Store, r keys.Resource, root string, inner storage.Interface) storage.Interface {
		return registry.NewStorage(s, registry.Options{Resource: r, Root: root}, inner)
	}
	os.Exit(m.Run())
}
