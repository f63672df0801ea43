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
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagefeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/cluster"
)

// Options say where a store keeps its data. Dir is required.
type Options struct {
	// Dir is for this process alone. It holds the data of an etcd in this process.
	Dir string
	// Etcd is where the data is.
	Etcd Etcd
	// Prefix of all keys; default "/registry".
	Prefix string
	// Version of Kubernetes that writes the data, as in "1.36".
	Version string
	// NoSync leaves writing to disk to the operating system. A crash of the
	// machine, though not of the process, may then lose writes: for tests.
	NoSync bool
	// Encryption says how the values of each resource are encrypted; nil for not
	// at all. It does not concern the server's own bookkeeping.
	Encryption value.ResourceTransformers
	// RenewEvery is how soon [Store.Renew] looks again whether Encryption has a new key.
	// The default is a minute.
	RenewEvery time.Duration
	// DeleteCollectionWorkers is how many objects a request to delete many deletes at
	// once. The default is one.
	DeleteCollectionWorkers int
}

// A Store keeps the objects of all clusters in one etcd.
type Store struct {
	prefix string
	// encryption of values; nil for none
	encryption value.ResourceTransformers
	renewEvery time.Duration
	version    string // of Kubernetes that writes the data
	deleters   int    // at once, of a request to delete many
	backend    *backend
	guard      *guard
	direct     *kubernetes.Client // for what no cache serves
	spine      *Spine
	// horizon is nil if nobody else writes to etcd.
	horizon *horizon
	stamps  *stamps
	decoded *memo[*unstructured.Unstructured]
	encoded *memo[reading]
	// odd is set once a value was met that cannot be decoded: only then are lists
	// searched for their stand-ins.
	odd atomic.Bool

	caches    *caches    // of custom resources
	histories *histories // of native ones
	limits    limits

	mu      sync.Mutex
	kinds   map[string]kind // by [Resource.kindPrefix]
	hooks   map[string]CreateHook
	derive  map[Resource]WriteHook
	closers []func()

	feedsMu  sync.Mutex
	feeds    map[*feeding]struct{} // of caches
	clock    *hastyClock           // of caches
	farewell *farewell
	resumeAt int64 // where the last process ended its watches; 0 if nobody knows

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	drains    sync.WaitGroup
	unlock    func() // of the directory
	lost      chan error
}

// A kind says how objects of a resource become bytes.
type kind struct {
	codec       tenantCodec
	transformer keyed
}

// Open starts the store. Close it to release the directory.
func Open(ctx context.Context, o Options) (*Store, error) {
	prepareLibraries()
	unlock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	b, err := o.Etcd.open(ctx, o.Dir, !o.NoSync)
	if err != nil {
		unlock()
		return nil, err
	}
	known := newFences()
	s := &Store{
		prefix:     path.Join("/", cmp.Or(o.Prefix, "/registry")),
		encryption: o.Encryption,
		renewEvery: cmp.Or(o.RenewEvery, renewEvery),
		version:    o.Version,
		deleters:   max(1, o.DeleteCollectionWorkers),
		backend:    b,
		stamps:     newStamps(func(c cluster.Name) bool { _, ok := known.get(c); return ok }),
		decoded:    newMemo[*unstructured.Unstructured](decodedSize),
		encoded:    newMemo[reading](encodedSize),
		kinds:      map[string]kind{},
		limits:     defaultLimits(),
		hooks:      map[string]CreateHook{},
		derive:     map[Resource]WriteHook{},
		closing:    make(chan struct{}),
		unlock:     unlock,
		lost:       make(chan error, 1),
		feeds:      map[*feeding]struct{}{},
		clock:      newHastyClock(),
		farewell:   newFarewell(),
	}
	s.guard = &guard{
		Interface: &kubernetes.Client{Client: b.client},
		kv:        b.client.KV, prefix: s.prefix, fences: known, budgets: newBudgets(), capacity: b.capacity,
	}
	s.guard.lease = s.leaseKey()
	opened, err := s.checkFormat(ctx, o.Version)
	if err == nil {
		err = s.readResume(ctx)
	}
	if err != nil {
		b.close()
		unlock()
		return nil, err
	}
	s.guard.saw(opened)
	s.direct = s.client()
	s.onClose(func() { _ = s.direct.Close() })
	if b.shared {
		s.horizon = newHorizon(s.newest)
	}
	s.caches = newCaches(s)
	s.onClose(s.caches.close)
	s.histories = newHistories(s)
	s.spine = newSpine(s)
	s.drains.Go(s.histories.look)
	return s, nil
}

// prepareLibraries sets what Kubernetes' storage libraries keep in globals. All
// stores of a process share it, and setting it again changes nothing.
var prepareLibraries = sync.OnceFunc(func() {
	boundMetrics()
	// The library asks each endpoint for its version; an etcd in process has none.
	storagefeature.DefaultFeatureSupportChecker = everyFeature{storagefeature.DefaultFeatureSupportChecker}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		// Lists everything again every few minutes, of all clusters.
		string(features.DetectCacheInconsistency): false,
		// Copies a part of the index of a cache with each event: a third of what a
		// workspace would need in memory. Lists of the past are read from etcd instead.
		string(features.ListFromCacheSnapshot): false,
	}); err != nil {
		panic(err) // gates of the version of the library that we are built with
	}
})

type everyFeature struct {
	storagefeature.FeatureSupportChecker
}

func (everyFeature) Supports(storage.Feature) bool { return true }

// Close stops everything that Open and the use of the store began. Requests must
// have ended.
func (s *Store) Close() { s.closeOnce.Do(s.close) }

func (s *Store) close() {
	close(s.closing)
	s.drains.Wait()
	if s.horizon != nil {
		s.horizon.stop()
	}
	s.spine.stop()
	s.mu.Lock()
	closers := s.closers
	s.closers = nil
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, stop := range closers { // upstream's caches take a second each if they just began
		wg.Go(stop)
	}
	wg.Wait()
	s.backend.close()
	s.unlock()
}

// newest asks etcd for its newest revision.
func (s *Store) newest(ctx context.Context) (int64, error) {
	before := s.guard.latest.Load()
	resp, err := s.backend.client.Get(ctx, s.prefix+"/"+string(System)+"/meta", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	if now := resp.Header.Revision; now < before {
		err := fmt.Errorf("etcd is at revision %d and was at %d: it was restored from a backup; what this server remembers is no longer so, and it has to start again", now, before)
		select {
		case s.lost <- err:
		default: // it is known
		}
		return 0, unavailable(err.Error())
	}
	s.guard.saw(resp.Header.Revision)
	return resp.Header.Revision, nil
}

// Lost returns a channel that gets an error if the data is no longer what this store
// knew, so that it has to be opened again.
func (s *Store) Lost() <-chan error { return s.lost }

// onClose has stop called by Close.
func (s *Store) onClose(stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, stop)
}

// client returns a client for etcd3, with a watch stream of its own.
func (s *Store) client() *kubernetes.Client {
	return &kubernetes.Client{Client: s.backend.watcher(), Kubernetes: s.guard}
}

// register tells how objects of a resource become bytes, for [Store.Commit].
func (s *Store) register(r Resource, codec tenantCodec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[r.kindPrefix()] = kind{codec, s.keyed(r.GroupResource())}
}

func (s *Store) kind(r Resource) (kind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kinds[r.kindPrefix()]
	if !ok && r.Root == Custom {
		return kind{tenantCodec{unstructured.UnstructuredJSONScheme}, s.keyed(r.GroupResource())}, nil
	}
	if !ok {
		return kind{}, fmt.Errorf("resource %s is not served", r.kindPrefix())
	}
	return k, nil
}

// Serves reports whether objects of a resource can be written: whether its kind is
// custom, or native and chosen.
func (s *Store) Serves(r Resource) bool {
	_, err := s.kind(r)
	return err == nil
}

// encode returns the value to store for obj at k. It leaves obj as it is.
func (s *Store) encode(ctx context.Context, k Key, obj runtime.Object) ([]byte, error) {
	how, err := s.kind(k.Resource)
	if err != nil {
		return nil, err
	}
	value, err := how.codec.encodeAt(obj)
	if err != nil {
		return nil, err
	}
	return how.transformer.seal(ctx, value, belowPrefix(k.full()))
}

// decode is the inverse of encode, into a new object of the storage version.
func (s *Store) decode(ctx context.Context, k Key, value []byte) (runtime.Object, error) {
	how, err := s.kind(k.Resource)
	if err != nil {
		return nil, err
	}
	plain, _, err := how.transformer.open(ctx, value, belowPrefix(k.full()))
	if err != nil {
		return nil, err
	}
	return how.codec.decodeAt(k, plain)
}

// Read returns an object as it is now and its revision, or nil if there is none.
func (s *Store) Read(ctx context.Context, k Key) (runtime.Object, int64, error) {
	if err := k.check(); err != nil {
		return nil, 0, err
	}
	resp, err := s.backend.client.Get(ctx, s.prefix+k.full())
	if err != nil {
		noteOutage(ctx, err)
		return nil, 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) == 0 {
		return nil, 0, nil
	}
	obj, err := s.decode(ctx, k, resp.Kvs[0].Value)
	return obj, resp.Kvs[0].ModRevision, err
}

// ReadInto reads a custom resource as it is now into o, and returns its revision, or
// 0 if there is none.
func (s *Store) ReadInto(ctx context.Context, k Key, o any) (int64, error) {
	if k.check() != nil {
		return 0, nil // no object is stored at what is no key
	}
	resp, err := s.backend.client.Get(ctx, s.prefix+k.full())
	if err != nil {
		noteOutage(ctx, err)
		return 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	return resp.Kvs[0].ModRevision, s.unmarshal(ctx, k, resp.Kvs[0].Value, o)
}

// unmarshal decodes the stored value of a custom resource into o.
func (s *Store) unmarshal(ctx context.Context, k Key, value []byte, o any) error {
	how, err := s.kind(k.Resource)
	if err != nil {
		return err
	}
	plain, _, err := how.transformer.open(ctx, value, belowPrefix(k.full()))
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(plain, o)
}

// NativeResource is where the objects of a kind compiled into the server are.
func NativeResource(gr schema.GroupResource) Resource {
	return Resource{Root: Native, Group: gr.Group, Resource: gr.Resource}
}

// CustomResource is where the objects of a kind served from a schema are.
func CustomResource(gr schema.GroupResource, identity string) Resource {
	return Resource{Root: Custom, Group: gr.Group, Resource: gr.Resource, Identity: identity}
}

// Spine returns the ordered stream of all changes.
func (s *Store) Spine() *Spine { return s.spine }

// A CreateHook takes the place of storing a new object of one resource. It must
// store obj or refuse, and replace obj.Object, which it must not change, by what is
// stored, with its resource version.
type CreateHook func(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error

// OnCreate sets the hook of a custom resource. Everything before storing, such as
// admission, validation and dry run, stays as it is for any resource.
func (s *Store) OnCreate(r Resource, hook CreateHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[r.prefix()] = hook
}

func (s *Store) hook(r Resource) CreateHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks[r.prefix()]
}

// A WriteHook completes an object of one resource that is about to be stored.
type WriteHook func(obj *unstructured.Unstructured)

// OnWrite sets what completes the objects of a custom resource whenever they are
// stored, whoever stores them: after admission and validation, and in the same write.
func (s *Store) OnWrite(r Resource, hook WriteHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.derive[r] = hook
}

// complete has the hook of its resource complete an object.
func (s *Store) complete(r Resource, o runtime.Object) {
	if r.Root != Custom {
		return
	}
	s.mu.Lock()
	hook := s.derive[r]
	s.mu.Unlock()
	if u, ok := o.(*unstructured.Unstructured); ok && hook != nil {
		hook(u)
	}
}

// derivedIn returns what completes the objects of a custom resource, whoever exports it.
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

// RawClient is the plain etcd client, for tests that write what no server would.
func (s *Store) RawClient() *clientv3.Client { return s.backend.client }
