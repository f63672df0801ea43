package etcd

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

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"k8s.io/klog/v2"
)

const (
	// snapshotCount is the number of raft entries between two snapshots. A start reads all
	// entries since the last snapshot into memory, and each may have maxRequestSize bytes.
	// While a snapshot is written, all writes wait for an fsync of the database.
	snapshotCount  = 1_000
	catchUpEntries = 100              // entries kept after a snapshot for slow followers; there are none
	progressEvery  = 5 * time.Second  // idle watch caches stay recent enough for watches to resume
	startTimeout   = 10 * time.Minute // a start maps the whole database into memory
)

// startEmbedded runs an etcd member in this process, without listeners. Only the clients of
// the returned backend can reach it.
func startEmbedded(ctx context.Context, settings Config, fsync bool) (*Backend, error) {
	fatal := newFatalHook()
	cfg := settings.embedded(fsync, fatal)
	e, err := start(ctx, cfg, fatal)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", cfg.Dir, err)
	}
	watches := newStreams(e.Server)
	client := watches.client()
	capacity := NewCapacity(func() int64 { return e.Server.Backend().SizeInUse() }, cfg.QuotaBackendBytes)
	client.KV = embeddedKV{client.KV, capacity}
	disk := newDiskWatcher(capacity, cfg.Dir, fsync)
	disk.measure(ctx)
	disk.reserve(ctx)
	file := &defragmenter{e.Server, disk}
	if err := file.atStart(ctx, client); err != nil { // etcd still accepts deletions
		klog.FromContext(ctx).Error(err, "The database is full")
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	pressed := func() bool { return capacity.above(pressedAt) }
	deleted, held := new(atomic.Int64), &holds{pressed: pressed}
	history := &compactor{kept: settings.history(), pressed: pressed,
		paused: func() bool { return held.now() || diskLevel(capacity.disk.Load()) == diskFull }}
	wg.Go(func() { history.run(working, client, deleted.Load) })
	wg.Go(func() { file.run(working) })
	wg.Go(func() { disk.run(working) })
	return &Backend{Client: client, Watcher: watches.client, Capacity: capacity, Deleted: deleted, holds: held, defragment: file.now, close: func() {
		stop()
		wg.Wait()
		_ = client.Close() // returns only the error of its cancelled context
		watches.close()
		e.Close()
	}}, nil
}

// embedded returns the configuration of an etcd member without listeners.
func (c Config) embedded(fsync bool, fatal *fatalHook) *embed.Config {
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
	cfg.MaxTxnOps, cfg.MaxRequestBytes = MaxTxnOps, maxRequestSize
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
