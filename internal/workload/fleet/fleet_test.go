package fleet

import (
	"time"

	"github.com/unforked/kcp"
)

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func key(name string) kcp.Key { return kcp.Key{Cluster: "tenant", Namespace: "default", Name: name} }
