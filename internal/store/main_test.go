package store_test

import (
	"os"
	"testing"

	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/etcdtest"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/registry"
	"github.com/unforked/kcp/internal/store"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	store.NewStorage = func(s *store.Store, r keys.Resource, root string, inner storage.Interface) storage.Interface {
		return registry.NewStorage(s, registry.Options{Resource: r, Root: root}, inner)
	}
	os.Exit(m.Run())
}
