// Package embedded runs an etcd member in this process, without listeners, and operates it: it defragments
// the database file, watches the disk, and checks the files before a start.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd/history"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

const (
	// QuotaBytes is the default maximum size of the database file. Above it, etcd refuses
	// writes.
	QuotaBytes = 8 << 30
	// MaxTxnOps is the maximum number of operations in a transaction.
	MaxTxnOps = 128
	// MaxRequestBytes is the maximum size of a request.
	MaxRequestBytes = 3 << 20

	// snapshotCount is the number of raft entries between two snapshots. A start reads all
	// entries since the last snapshot into memory, and each may have MaxRequestBytes.
	// While a snapshot is written, all writes wait for an fsync of the database.
	snapshotCount  = 1_000
	catchUpEntries = 100              // entries kept after a snapshot for slow followers; there are none
	progressEvery  = 5 * time.Second  // idle watch caches stay recent enough for watches to resume
	startTimeout   = 10 * time.Minute // a start maps the whole database into memory
)

// A Config is how a member is run. Its zero values mean the defaults, but for Dir.
type Config struct {
	// Dir is the data directory.
	Dir string
	// WALSizeBytes is the size of a segment of the write-ahead log. The default is that of
	// etcd.
	WALSizeBytes int64
	// QuotaBackendBytes is the maximum size of the database file. The default is [QuotaBytes].
	QuotaBackendBytes int64
	// ForceNewCluster turns the files of one member of a larger etcd cluster into a
	// cluster with one member.
	ForceNewCluster bool
	// Kept is how long the history of changes is kept; 0 keeps it while there is space.
	Kept time.Duration
}

// A Member is a running etcd.
type Member struct {
	// Client reaches the member. Its errors are API statuses if etcd has no space.
	Client *clientv3.Client
	// Capacity measures and limits the use of the database.
	Capacity *space.Capacity
	// Deleted counts the deleted keys since the start. History is compacted earlier after many
	// deletions.
	Deleted *atomic.Int64

	watches *streams
	history *history.Holds
	file    *defragmenter
	server  *embed.Etcd
	stop    context.CancelFunc
	working sync.WaitGroup
}

// Start runs a member in this process. Only its own clients can reach it. Without fsync, a crash of the
// machine may lose acknowledged writes.
func Start(ctx context.Context, settings Config, fsync bool) (*Member, error) {
	fatal := newFatalHook()
	cfg := settings.etcd(fsync, fatal)
	e, err := start(ctx, cfg, fatal)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", cfg.Dir, err)
	}
	watches := newStreams(e.Server)
	client := watches.client()
	capacity := space.New(func() int64 { return e.Server.Backend().SizeInUse() }, cfg.QuotaBackendBytes)
	client.KV = localKV{client.KV, capacity}
	disk := space.NewDisk(capacity, cfg.Dir, DatabaseFile(cfg.Dir), fsync)
	disk.Measure(ctx)
	disk.Reserve(ctx)
	file := &defragmenter{e.Server, disk}
	if err := file.atStart(ctx, client); err != nil { // etcd still accepts deletions
		klog.FromContext(ctx).Error(err, "The database is full")
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	pressed := func() bool { return capacity.Above(history.PressedAt) }
	m := &Member{
		Client: client, Capacity: capacity, Deleted: new(atomic.Int64),
		watches: watches, history: &history.Holds{Pressed: pressed}, file: file, server: e, stop: stop,
	}
	past := &history.Compactor{Kept: settings.Kept, Pressed: pressed, Paused: func() bool { return m.history.Now() || capacity.NoDisk() != nil }}
	m.working.Go(func() { past.Run(working, client, m.Deleted.Load) })
	m.working.Go(func() { file.run(working) })
	m.working.Go(func() { disk.Run(working) })
	return m, nil
}

// Watcher returns a client with its own watch stream.
func (m *Member) Watcher() *clientv3.Client { return m.watches.client() }

// Hold keeps the history until release is called, for at most an hour and while the database
// has space.
func (m *Member) Hold() (release func()) { return m.history.Hold() }

// Defragment rewrites the database file without free pages, and clears the alarm for lack of space if
// there is enough.
func (m *Member) Defragment(ctx context.Context) ([]space.Defragmented, error) {
	return m.file.now(ctx)
}

// Close stops the work in the background, the clients and the member.
func (m *Member) Close() {
	m.stop()
	m.working.Wait()
	_ = m.Client.Close() // returns only the error of its cancelled context
	m.watches.close()
	m.server.Close()
}

// etcd returns the configuration of a member without listeners.
func (c Config) etcd(fsync bool, fatal *fatalHook) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "kcp"
	cfg.Dir = c.Dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(fatal.logger())
	nowhere := []url.URL{{Scheme: "http", Host: "localhost:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = []url.URL{}, []url.URL{}
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = nowhere, nowhere
	cfg.InitialCluster = cfg.Name + "=" + nowhere[0].String()
	cfg.UnsafeNoFsync = !fsync
	cfg.QuotaBackendBytes = cmp.Or(c.QuotaBackendBytes, QuotaBytes)
	cfg.ForceNewCluster = c.ForceNewCluster
	if c.WALSizeBytes > 0 {
		wal.SegmentSizeBytes = c.WALSizeBytes // a global of etcd: for all members in this process
	}
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotCount, catchUpEntries
	cfg.WatchProgressNotifyInterval = progressEvery
	cfg.MaxTxnOps, cfg.MaxRequestBytes = MaxTxnOps, MaxRequestBytes
	cfg.TickMs, cfg.ElectionMs = 10, 100 // a single member elects itself at once
	return cfg
}

// advised adds to an error of the start what to do about it. Errors of etcd that end its process
// have only a text.
func advised(err error) error {
	if strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
		return fmt.Errorf("%w; free space on its volume, or choose another directory", err)
	}
	return fmt.Errorf("%w; if its files are damaged, restore a backup, or move it away to start empty", err)
}

// start runs a member until it is ready. After an error, goroutines and open files may
// remain; the caller ends the process.
func start(ctx context.Context, cfg *embed.Config, fatal *fatalHook) (*embed.Etcd, error) {
	finish, err := beginFirst(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := checkFiles(memberDir(cfg.Dir)); err != nil {
		return nil, advised(err)
	}
	running, failed := make(chan *embed.Etcd, 1), make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				failed <- fmt.Errorf("etcd cannot read its files: %v", r)
			}
		}()
		if e, err := embed.StartEtcd(cfg); err != nil {
			failed <- err
		} else {
			running <- e
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the start takes longer than "+startTimeout.String()))
	defer cancel()
	var e *embed.Etcd
	var ready <-chan struct{}
	var broken <-chan error
	for {
		var err error
		select {
		case e = <-running:
			ready, broken, running = e.Server.ReadyNotify(), e.Err(), nil
			continue
		case <-ready:
			fatal.started.Store(true)
			if err = finish(); err == nil {
				return e, nil
			}
		case err = <-broken:
		case err = <-failed:
			err = advised(err)
		case err = <-fatal.reached:
			return nil, advised(err) // closing a half-started member would block forever
		case <-ctx.Done():
			err = advised(fmt.Errorf("etcd is not ready: %w", context.Cause(ctx)))
			if e == nil { // StartEtcd has no context
				select {
				case e = <-running:
				case err = <-failed:
				case err = <-fatal.reached:
				}
			}
		}
		if e != nil {
			e.Close()
		}
		return nil, err
	}
}
