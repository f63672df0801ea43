package store

import (
	"os"
	"testing"

	"github.com/unforked/kcp/internal/etcdtest"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}
