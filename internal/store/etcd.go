package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

const (
	quotaBytes     = 8 << 30         // of the database file, after which etcd refuses writes
	retention      = 5 * time.Minute // of history, after which it is compacted
	snapshotCount  = 2_000           // raft entries kept in memory between snapshots
	catchUpEntries = 100             // and after one, for other members, of which there are none
	progressEvery  = 5 * time.Second // so that idle watch caches stay recent enough to resume from
	startTimeout   = 30 * time.Second
	maxTxnOps      = 128
	maxRequestSize = 3 << 20
)

// An Etcd says which etcd a store keeps its data in. The zero value is one in this
// process, which nobody else can reach.
type Etcd struct {
	// Servers are the URLs of an etcd outside this process, which other processes
	// may use for the same data; none for one in this process.
	Servers []string
	// CAFile holds, in PEM, the certificate authorities of the servers; empty for
	// those of the system.
	CAFile string
	// CertFile and KeyFile hold, in PEM, the client certificate and its key.
	CertFile, KeyFile string
	// Username and Password are for servers that ask for them.
	Username, Password string
	// CompactionInterval is how long the history of changes is kept, from which
	// watches resume. The default is five minutes; less than zero leaves compacting
	// to somebody else.
	CompactionInterval time.Duration

	// Dir holds the data of the etcd in this process. The default is etcd-server in
	// the directory of the store.
	Dir string
	// WALSizeBytes is the size of a segment of its log. The default is etcd's.
	WALSizeBytes int64
	// QuotaBackendBytes is how large its database may grow. The default is 8 GiB.
	QuotaBackendBytes int64
	// ForceNewCluster makes a cluster of one member of files that are from a member of
	// several.
	ForceNewCluster bool
}

// history is how long it is kept, 0 for as long as nobody else compacts it.
func (e Etcd) history() time.Duration { return max(0, cmp.Or(e.CompactionInterval, retention)) }

// open starts an etcd in this process, or connects to one outside.
func (e Etcd) open(ctx context.Context, dir string, fsync bool) (*backend, error) {
	if len(e.Servers) > 0 {
		return connect(ctx, e)
	}
	e.Dir = cmp.Or(e.Dir, filepath.Join(dir, "etcd-server"))
	return startEtcd(ctx, e, fsync)
}

// backend is an etcd and how to talk to it.
type backend struct {
	client *clientv3.Client
	// shared is true if others may write to it.
	shared bool
	// watcher makes a client with a watch stream of its own, to be closed with it:
	// a slow watch delays the progress reports of every other watch on its stream.
	watcher func() *clientv3.Client
	// capacity of the database.
	capacity *capacity
	close    func()
}

// startEtcd runs an etcd member in this process. It listens nowhere: the only way to
// it is the client returned, without a socket between.
func startEtcd(ctx context.Context, settings Etcd, fsync bool) (*backend, error) {
	cfg := embed.NewConfig()
	cfg.Name = "kcp"
	cfg.Dir = settings.Dir
	fatal := newVerdict()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewNopCore(), zap.WithPanicHook(fatal), zap.WithFatalHook(fatal)))
	nowhere := []url.URL{{Scheme: "http", Host: "localhost:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = []url.URL{}, []url.URL{}
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = nowhere, nowhere
	cfg.InitialCluster = cfg.Name + "=" + nowhere[0].String()
	cfg.UnsafeNoFsync = !fsync
	cfg.QuotaBackendBytes = cmp.Or(settings.QuotaBackendBytes, quotaBytes)
	cfg.ForceNewCluster = settings.ForceNewCluster
	if settings.WALSizeBytes > 0 {
		wal.SegmentSizeBytes = settings.WALSizeBytes // of all members in this process
	}
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotCount, catchUpEntries
	cfg.WatchProgressNotifyInterval = progressEvery
	cfg.MaxTxnOps, cfg.MaxRequestBytes = maxTxnOps, maxRequestSize
	cfg.TickMs, cfg.ElectionMs = 10, 100 // one member: nobody to wait for at start

	e, err := start(ctx, cfg, fatal)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", cfg.Dir, err)
	}
	watches := newStreams(e.Server)
	client := watches.client()
	client.KV = told{client.KV}
	full := newCapacity(func() int64 { return e.Server.Backend().SizeInUse() }, cfg.QuotaBackendBytes)
	file := &room{e.Server, full}
	if err := file.makeFirst(ctx, client); err != nil { // deletions may still be taken
		klog.FromContext(ctx).Error(err, "The database is full")
	}
	compacting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	history := &compactor{kept: settings.history(), pressed: func() bool { return full.above(pressedAt) }}
	wg.Go(func() { history.run(compacting, client, full.gone.Load) })
	file.keep(compacting, &wg)
	return &backend{client: client, watcher: watches.client, capacity: full, close: func() {
		stop()
		wg.Wait()
		_ = client.Close() // in process: reports nothing but that its context ended
		watches.close()
		e.Close()
	}}, nil
}

// start runs a member until it is ready. One that could not start may leave
// goroutines and open files behind; the process is about to end.
func start(ctx context.Context, cfg *embed.Config, fatal *verdict) (*embed.Etcd, error) {
	const advice = "%w; if its files are damaged, restore a backup, or move it away to start empty"
	finish, err := beginFirst(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := checkFiles(memberDir(cfg.Dir)); err != nil {
		return nil, fmt.Errorf(advice, err)
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
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it takes too long"))
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
			err = fmt.Errorf(advice, err)
		case err = <-fatal.reached:
			return nil, fmt.Errorf(advice, err) // closing what is half open would wait forever
		case <-ctx.Done():
			err = fmt.Errorf("etcd is not ready: "+advice, context.Cause(ctx))
			if e == nil { // it does not listen to the context
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

// lockDir makes dir and holds it for this process alone.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another with --root-directory", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil, fmt.Errorf("data directory %s is not writable: %w; make it writable, or choose another with --root-directory", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) // for the message only
		_ = f.Close()
		return nil, fmt.Errorf("data directory %s is in use by process %s; stop that server, or choose another directory with --root-directory", dir, strings.TrimSpace(string(holder[:n])))
	}
	if err := errors.Join(f.Truncate(0), writeAt0(f, fmt.Sprintln(os.Getpid()))); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

func writeAt0(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}
