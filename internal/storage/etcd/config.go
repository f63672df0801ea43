// Package etcd provides the database: it starts an etcd server in this process or connects to
// an external one, and operates it. It compacts history, defragments the database file,
// measures its size and limits the duration of requests. It does not know the stored keys,
// except the one that describes the format of the data.
package etcd

import (
	"cmp"
	"context"
	"path/filepath"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// QuotaBytes is the default maximum size of the database file. Above it, etcd refuses
	// writes.
	QuotaBytes = 8 << 30
	// MaxTxnOps is the maximum number of operations in a transaction.
	MaxTxnOps = 128

	maxRequestSize = 3 << 20
	retention      = 5 * time.Minute // default time to keep history
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

// history returns how long history is kept; 0 if this process does not compact it.
func (c Config) history() time.Duration { return max(0, cmp.Or(c.CompactionInterval, retention)) }

// Open starts an etcd in this process, with its data in dir unless c.Dir is set, or connects
// to an external one. Without fsync, a crash of the machine may lose acknowledged writes.
func Open(ctx context.Context, c Config, dir string, fsync bool) (*Backend, error) {
	if len(c.Servers) > 0 {
		return connect(ctx, c)
	}
	c.Dir = cmp.Or(c.Dir, filepath.Join(dir, "etcd-server"))
	return startEmbedded(ctx, c, fsync)
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
	Capacity *Capacity
	// Deleted counts the deleted keys since the start. The compactor compacts earlier after
	// many deletions.
	Deleted *atomic.Int64

	holds      *holds // of an etcd in this process
	defragment func(context.Context) ([]Defragmented, error)
	close      func()
}

// Close stops all background work, the clients and the etcd in this process.
func (b *Backend) Close() { b.close() }
