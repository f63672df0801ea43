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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/etcd"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/upstream"
	"github.com/unforked/kcp/internal/values"
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
	// DeleteCollectionWorkers is the number of parallel deletions of a request that deletes
	// a collection. The default is one.
	DeleteCollectionWorkers int
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
	deleters   int    // of a request that deletes a collection
	backend    *etcd.Backend
	guard      *guard
	direct     *kubernetes.Client // for requests that no cache serves
	feed       *feed.Feed
	feedClient *clientv3.Client
	// revisions reads the current revision; nil if no other process writes to etcd.
	revisions *feed.RevisionReader
	stamps    *values.Stamps
	decoded   *memo[*unstructured.Unstructured]
	encoded   *memo[reading]
	// standIns is set once a value could not be decoded: only then are lists searched for
	// stand-ins.
	standIns atomic.Bool

	caches    *caches    // of custom resources
	histories *histories // of native resources
	limits    limits

	mu      sync.Mutex
	hooks   map[string]CreateHook
	derive  map[keys.Resource]WriteHook
	closers []func()

	feedsMu  sync.Mutex
	feeds    map[*feeding]struct{} // of caches
	clock    *skipClock            // of caches
	final    *finalBookmarks
	resumeAt int64 // where the last process ended its watches; 0 if unknown

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	watches   sync.WaitGroup
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
		prefix:     prefix,
		epoch:      o.Epoch,
		values:     values.NewKinds(prefix, o.Encryption),
		renewEvery: cmp.Or(o.RenewEvery, renewEvery),
		version:    o.Version,
		deleters:   max(1, o.DeleteCollectionWorkers),
		backend:    b,
		stamps:     values.NewStamps(func(c cluster.Name) bool { _, ok := known.get(c); return ok }),
		decoded:    newMemo[*unstructured.Unstructured](decodedSize),
		encoded:    newMemo[reading](encodedSize),
		limits:     defaultLimits(),
		hooks:      map[string]CreateHook{},
		derive:     map[keys.Resource]WriteHook{},
		closing:    make(chan struct{}),
		unlock:     unlock,
		lost:       make(chan error, 1),
		feeds:      map[*feeding]struct{}{},
		clock:      newSkipClock(),
		final:      newFinalBookmarks(),
	}
	s.guard = &guard{
		Interface: &kubernetes.Client{Client: b.Client},
		kv:        b.Client.KV, prefix: s.prefix, fences: known, tenants: quota.New(o.TenantShare), capacity: b.Capacity,
	}
	opened, err := s.format().Check(ctx)
	if err == nil {
		err = s.readResume(ctx)
	}
	if err != nil {
		b.Close()
		unlock()
		return nil, err
	}
	s.guard.saw(opened)
	s.direct = s.client()
	s.onClose(func() { _ = s.direct.Close() })
	if b.Shared {
		s.revisions = feed.NewRevisionReader(s.newest)
	}
	s.caches = newCaches(s)
	s.onClose(s.caches.close)
	s.histories = newHistories(s)
	s.openFeed(o.now)
	s.watches.Go(s.histories.look)
	return s, nil
}

// SetTenant sets the function that returns the tenant of a cluster: writes and storage are
// limited by tenant. f must be quick.
func (s *Store) SetTenant(f func(cluster.Name) cluster.Name) { s.guard.tenants.SetTenant(f) }

// Close stops everything that Open and requests started. Requests must have ended.
func (s *Store) Close() { s.closeOnce.Do(s.close) }

func (s *Store) close() {
	close(s.closing)
	s.watches.Wait()
	if s.revisions != nil {
		s.revisions.Stop()
	}
	s.feed.Stop()
	_ = s.feedClient.Close() // reports only that its context ended
	s.mu.Lock()
	closers := s.closers
	s.closers = nil
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, stop := range closers { // upstream's caches take a second each if they just began
		wg.Go(stop)
	}
	wg.Wait()
	s.backend.Close()
	s.unlock()
}

// newest reads the current revision of etcd.
func (s *Store) newest(ctx context.Context) (int64, error) {
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
		return 0, etcd.Unavailable(err.Error())
	}
	s.guard.saw(resp.Header.Revision)
	return resp.Header.Revision, nil
}

// format returns the description of the stored data.
func (s *Store) format() etcd.Format {
	return etcd.Format{KV: s.backend.Client, Prefix: s.prefix, Key: s.formatKey(), Kubernetes: s.version}
}

func (s *Store) formatKey() string { return s.prefix + keys.Note("meta") }

// Lost returns a channel that gets an error if the data is older than what this store has
// read, as after a restore. The store must be opened again.
func (s *Store) Lost() <-chan error { return s.lost }

// onClose registers a function for Close to call.
func (s *Store) onClose(stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, stop)
}

// client returns a client for etcd3, with a watch stream of its own.
func (s *Store) client() *kubernetes.Client {
	return &kubernetes.Client{Client: s.backend.Watcher(), Kubernetes: s.guard}
}

// Serves reports whether objects of a resource can be written: every custom resource, and
// the native resources that have a storage.
func (s *Store) Serves(r keys.Resource) bool {
	_, err := s.values.Kind(r)
	return err == nil
}

// Feed returns the feed of all changes. The caller starts it, once all followers were added.
func (s *Store) Feed() *feed.Feed { return s.feed }

// A CreateHook replaces the storing of a new object of one resource. It must store obj or
// return an error. It sets obj.Object to the stored object with its resource version, and
// must not change the map that obj.Object was.
type CreateHook func(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error

// OnCreate sets the hook of a custom resource. The steps before storing, such as admission,
// validation and dry run, are as for any resource.
func (s *Store) OnCreate(r keys.Resource, hook CreateHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[r.Prefix()] = hook
}

func (s *Store) hook(r keys.Resource) CreateHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks[r.Prefix()]
}

// A WriteHook completes an object of one resource before it is stored.
type WriteHook func(obj *unstructured.Unstructured)

// OnWrite sets the hook that completes objects of a custom resource in every write, after
// admission and validation.
func (s *Store) OnWrite(r keys.Resource, hook WriteHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.derive[r] = hook
}

// complete calls the write hook of an object.
func (s *Store) complete(r keys.Resource, o runtime.Object) {
	if r.Root != keys.Custom {
		return
	}
	s.mu.Lock()
	hook := s.derive[r]
	s.mu.Unlock()
	if u, ok := o.(*unstructured.Unstructured); ok && hook != nil {
		hook(u)
	}
}

// derivedIn returns the write hook of a custom resource of any identity.
func (s *Store) derivedIn(gr schema.GroupResource) WriteHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, hook := range s.derive {
		if r.GroupResource() == gr {
			return hook
		}
	}
	return nil
}

// RawClient returns the client of etcd, for tests.
func (s *Store) RawClient() *clientv3.Client { return s.backend.Client }

// undecodable records that a stored value cannot be decoded.
func (s *Store) undecodable() { s.standIns.Store(true) }

// ResourceVersion returns the resource version of an object that changed at a revision.
func (s *Store) ResourceVersion(revision int64) string { return s.epoch.Of(revision) }
