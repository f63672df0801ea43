// Package etcd provides the database: an etcd in this process or outside. Its folders start the one,
// connect to the other, and operate both. It does not know the stored keys, except the one that
// describes the format of the data.
package etcd

import (
	"cmp"
	"context"
	"path/filepath"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcd/embedded"
	"github.com/unforked/kcp/internal/storage/etcd/external"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

const (
	// MaxTxnOps is the maximum number of operations in a transaction.
	MaxTxnOps = embedded.MaxTxnOps
	// ReadTimeout is the maximum time for one server to answer a small read. RequestTimeout is that of all
	// other requests, except reads of many objects.
	ReadTimeout, RequestTimeout = external.ReadTimeout, external.RequestTimeout

	retention = 5 * time.Minute // default time to keep history
)

// A Config selects the etcd. The zero value runs one in this process, without a listener.
type Config struct {
	// Servers are the URLs of an external etcd. Several processes may use it for the same
	// data. Empty means an etcd in this process.
	Servers []string
	// CAFile is a PEM file of the certificate authorities that verify the servers. Empty
	// means the authorities of the system.
	CAFile string
	// CertFile and KeyFile are PEM files of the client certificate and its key.
	CertFile, KeyFile string
	// Username and Password are for servers that require them.
	Username, Password string
	// CompactionInterval is how long the history of changes is kept. Watches can resume
	// within it. The default is five minutes. A negative value disables compaction.
	CompactionInterval time.Duration

	// Dir is the data directory of the etcd in this process. The default is etcd-server in
	// the directory of the store.
	Dir string
	// WALSizeBytes is the size of a segment of the write-ahead log. The default is that of
	// etcd.
	WALSizeBytes int64
	// QuotaBackendBytes is the maximum size of the database file. The default is 8 GiB.
	QuotaBackendBytes int64
	// ForceNewCluster turns the files of one member of a larger etcd cluster into a
	// cluster with one member.
	ForceNewCluster bool
}

// kept returns how long history is kept; 0 if this process does not compact it.
func (c Config) kept() time.Duration { return max(0, cmp.Or(c.CompactionInterval, retention)) }

func (c Config) external() external.Config {
	return external.Config{
		Servers: c.Servers, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Username: c.Username, Password: c.Password,
		Kept: c.kept(), MaxRequestBytes: embedded.MaxRequestBytes,
	}
}

// embedded returns how the etcd in this process is run. dir is the directory of the store.
func (c Config) embedded(dir string) embedded.Config {
	return embedded.Config{
		Dir: cmp.Or(c.Dir, filepath.Join(dir, "etcd-server")), WALSizeBytes: c.WALSizeBytes, QuotaBackendBytes: c.QuotaBackendBytes,
		ForceNewCluster: c.ForceNewCluster, Kept: c.kept(),
	}
}

// A Backend is a running etcd and its clients.
type Backend struct {
	Client *clientv3.Client
	// Shared reports whether other processes may write to this etcd.
	Shared bool
	// Watcher returns a client with its own watch stream. The caller closes it. A slow watch
	// delays the progress reports of all watches on the same stream.
	Watcher func() *clientv3.Client
	// Capacity measures and limits the use of the database.
	Capacity *space.Capacity
	// Deleted counts the deleted keys since the start. The history of an etcd in this process is
	// compacted earlier after many deletions.
	Deleted *atomic.Int64
	// Hold keeps the history until release is called, for at most an hour and while the database
	// has space. It has no effect on an external etcd, which other processes may compact.
	Hold func() (release func())
	// Defragment defragments every member, one after the other, and then clears the alarm for lack of
	// space if every member has enough. It returns the members done so far with an error.
	Defragment func(context.Context) ([]space.Defragmented, error)
	// Close stops all background work, the clients and the etcd in this process.
	Close func()
}

// Open starts an etcd in this process, with its data in dir unless c.Dir is set, or connects
// to an external one. Without fsync, a crash of the machine may lose acknowledged writes.
func Open(ctx context.Context, c Config, dir string, fsync bool) (*Backend, error) {
	if len(c.Servers) > 0 {
		e, err := external.Connect(ctx, c.external())
		if err != nil {
			return nil, err
		}
		return &Backend{
			Client: e.Client, Shared: true, Watcher: e.Watcher, Capacity: e.Capacity, Deleted: new(atomic.Int64),
			Hold: func() func() { return func() {} }, Defragment: e.Defragment, Close: e.Close,
		}, nil
	}
	m, err := embedded.Start(ctx, c.embedded(dir), fsync)
	if err != nil {
		return nil, err
	}
	return &Backend{
		Client: m.Client, Watcher: m.Watcher, Capacity: m.Capacity, Deleted: m.Deleted,
		Hold: m.Hold, Defragment: m.Defragment, Close: m.Close,
	}, nil
}
