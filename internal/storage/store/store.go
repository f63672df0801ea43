package store

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/upstream"
)

// Options configure a store. Dir is required.
type Options struct {
	// Dir is a directory for this process alone. It has the data of an embedded etcd.
	Dir string
	// Etcd configures etcd, embedded or outside.
	Etcd etcd.Config
	// Prefix of all keys. The default is "/registry".
	Prefix string
	// Version of Kubernetes that writes the data, as in "1.36".
	Version string
	// NoSync disables fsync, for tests. A crash of the machine, not of the process, may
	// then lose writes.
	NoSync bool
	// Encryption encrypts the values of each resource; nil for no encryption. It does not
	// apply to the server's own notes.
	Encryption value.ResourceTransformers
	// RenewEvery is how often [Store.Renew] checks whether Encryption has a new key. The
	// default is a minute.
	RenewEvery time.Duration
	// TenantShare limits the share of the database that one tenant may use, in percent. The
	// default is 25.
	TenantShare int
	// Epoch is a part of the resource versions of all objects.
	Epoch values.Epoch

	now func() time.Time // measures the age of data; set in tests
}

// A Store keeps the objects of all clusters in one etcd. Methods may be called
// concurrently.
type Store struct {
	prefix     string
	epoch      values.Epoch
	values     *values.Kinds
	renewEvery time.Duration
	version    string // of Kubernetes that writes the data
	backend    *etcd.Backend
	guard      *guard
	feed       *feed.Feed
	feedClient *clientv3.Client
	// revisions reads the current revision; nil if no other process writes to etcd.
	revisions *feed.RevisionReader
	stamps    *values.Stamps
	election  *election.Election
	// standIns is set once a value could not be decoded.
	standIns atomic.Bool

	changed []func(feed.Event) // see OnChange

	mu          sync.Mutex
	createHooks map[string]CreateHook // by [keys.Resource.Prefix]
	writeHooks  map[keys.Resource]WriteHook

	closeOnce sync.Once
	unlock    func() // of the directory
	lost      chan error
}

// Open opens the store, and starts an embedded etcd. The caller calls Close to release the
// directory.
func Open(ctx context.Context, o Options) (*Store, error) {
	upstream.SetGlobals()
	unlock, err := etcd.LockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	b, err := etcd.Open(ctx, o.Etcd, o.Dir, !o.NoSync)
	if err != nil {
		unlock()
		return nil, err
	}
	known := newFences()
	prefix := path.Join("/", cmp.Or(o.Prefix, "/registry"))
	s := &Store{
		prefix:      prefix,
		epoch:       o.Epoch,
		values:      values.NewKinds(prefix, o.Encryption),
		renewEvery:  cmp.Or(o.RenewEvery, renewEvery),
		version:     o.Version,
		backend:     b,
		stamps:      values.NewStamps(func(c cluster.Name) bool { _, ok := known.get(c); return ok }),
		createHooks: map[string]CreateHook{},
		writeHooks:  map[keys.Resource]WriteHook{},
		unlock:      unlock,
		lost:        make(chan error, 1),
	}
	s.guard = &guard{
		Interface: &kubernetes.Client{Client: b.Client},
		kv:        b.Client, prefix: s.prefix, fences: known, tenants: quota.New(o.TenantShare), capacity: b.Capacity,
	}
	opened, err := s.format().Check(ctx)
	if err != nil {
		b.Close()
		unlock()
		return nil, err
	}
	s.guard.saw(opened)
	if b.Shared {
		s.revisions = feed.NewRevisionReader(s.Newest)
	}
	s.election = election.New(b.Client, prefix, !b.Shared)
	s.openFeed(o.now)
	return s, nil
}

// SetTenant sets the function that returns the tenant of a cluster: writes and storage are
// limited by tenant. f must be quick.
func (s *Store) SetTenant(f func(cluster.Name) cluster.Name) { s.guard.tenants.SetTenant(f) }

// Close stops everything that Open started. Requests must have ended, and watch caches must be
// closed.
func (s *Store) Close() { s.closeOnce.Do(s.close) }

func (s *Store) close() {
	if s.revisions != nil {
		s.revisions.Stop()
	}
	s.feed.Stop()
	_ = s.feedClient.Close() // reports only that its context ended
	s.backend.Close()
	s.unlock()
}

// Newest reads the current revision of etcd.
func (s *Store) Newest(ctx context.Context) (int64, error) {
	before := s.guard.latest.Load()
	resp, err := s.backend.Client.Get(ctx, s.formatKey(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	if now := resp.Header.Revision; now < before {
		err := fmt.Errorf("etcd is at revision %d and was at %d: it was restored from a backup; what this server remembers is no longer so, and it has to start again", now, before)
		select {
		case s.lost <- err:
		default: // it was reported before
		}
		return 0, outage.Unavailable(err.Error())
	}
	s.guard.saw(resp.Header.Revision)
	return resp.Header.Revision, nil
}

// Reachable returns an error if etcd does not answer.
func (s *Store) Reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, etcd.ReadTimeout)
	defer cancel()
	if s.revisions == nil {
		_, err := s.Newest(ctx)
		return err
	}
	_, _, err := s.revisions.Read(ctx)
	return err
}

// format returns the description of the stored data.
func (s *Store) format() etcd.Format {
	return etcd.Format{KV: s.backend.Client, Prefix: s.prefix, Key: s.formatKey(), Kubernetes: s.version}
}

func (s *Store) formatKey() string { return s.prefix + keys.Note("meta") }

// Lost returns a channel that gets an error if the data is older than what this store has
// read, as after a restore. The store must be opened again.
func (s *Store) Lost() <-chan error { return s.lost }

// Prefix returns the prefix of all keys, without a slash at the end.
func (s *Store) Prefix() string { return s.prefix }

// Epoch returns the part of resource versions that all objects share.
func (s *Store) Epoch() values.Epoch { return s.epoch }

// Values returns how the objects of each resource are stored.
func (s *Store) Values() *values.Kinds { return s.values }

// Stamps returns the annotations that objects in memory share.
func (s *Store) Stamps() *values.Stamps { return s.stamps }

// Election returns the election among the processes with the same data.
func (s *Store) Election() *election.Election { return s.election }

// Shared reports whether other processes may use the same data.
func (s *Store) Shared() bool { return s.revisions != nil }

// Latest returns the newest revision that this process has seen.
func (s *Store) Latest() int64 { return s.guard.latest.Load() }

// Serves reports whether objects of a resource can be written: every custom resource, and
// the native resources that have a storage.
func (s *Store) Serves(r keys.Resource) bool {
	_, err := s.values.Kind(r)
	return err == nil
}

// Feed returns the feed of all changes. The caller starts it, once all followers were added.
func (s *Store) Feed() *feed.Feed { return s.feed }

// RawClient returns the client of etcd, for tests.
func (s *Store) RawClient() *clientv3.Client { return s.backend.Client }

// ResourceVersion returns the resource version of an object that changed at a revision.
func (s *Store) ResourceVersion(revision int64) string { return s.epoch.ResourceVersion(revision) }

// Forget drops the memory of this process about a deleted cluster, and reports whether
// there was any. A cache that processes the deletion late may add some again.
func (s *Store) Forget(c cluster.Name) bool {
	if _, exists := s.guard.fences.get(c); exists {
		return false
	}
	stamped, spent := s.stamps.Drop(c), s.guard.tenants.Drop(c)
	return stamped || spent
}
