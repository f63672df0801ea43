package watchcache

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	kms "k8s.io/kms/pkg/service"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// plugin is a KMS plugin with an observable key.
type plugin struct {
	mu  sync.Mutex
	key string
}

// startKMS starts a plugin and returns the provider that uses it.
func startKMS(t testing.TB) (p *plugin, provider string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	p = &plugin{key: "one"}
	s := kms.NewGRPCService(socket, storetest.Patience, p)
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe() }()
	t.Cleanup(func() { s.Shutdown(); <-ended })
	return p, fmt.Sprintf("kms: {apiVersion: v2, name: %s, endpoint: 'unix://%s', timeout: 60s}", filepath.Base(dir), socket)
}

func (p *plugin) Status(context.Context) (*kms.StatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: p.key}, nil
}

func (p *plugin) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &kms.EncryptResponse{Ciphertext: mirrored(data), KeyID: p.key}, nil
}

func (p *plugin) Decrypt(_ context.Context, _ string, r *kms.DecryptRequest) ([]byte, error) {
	return mirrored(r.Ciphertext), nil
}

func mirrored(data []byte) []byte {
	data = slices.Clone(data)
	slices.Reverse(data)
	return data
}

// With every provider, stored values contain no plaintext, are readable after a restart, and
// cannot be decrypted at another key.
func TestEncryption(t *testing.T) {
	_, plugin := startKMS(t)
	for name, provider := range map[string]string{
		"aescbc": storetest.Keys("aescbc", "one"), "aesgcm": storetest.AESGCM("one"), "secretbox": storetest.Keys("secretbox", "one"), "kms": plugin,
	} {
		for _, f := range []flavour{natives(), customs()} {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				w := &world{TB: t, flavour: f, dir: t.TempDir(), encryption: storetest.Encrypting(t, provider)}
				w.start()
				defer func() { w.ended() }()
				encrypted(t, w)
			})
		}
	}
}

func encrypted(t *testing.T, w *world) {
	create(t, w.store, "c1", "bad")
	at := object{"ns", "x"}
	w.put(space{cluster: "c1"}, at, "plain-text")
	w.put(space{cluster: "bad"}, at, "other-text")
	watched, err := w.apis[0].Watch(in(cluster.All), w.root, everything("0"))
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	next(t, watched)
	next(t, watched)
	stored := w.stored(t, "c1", at)
	if !values.IsEncrypted(stored) || bytes.Contains(stored, []byte("plain-text")) || bytes.Contains(stored, []byte("ns/x")) {
		t.Errorf("stored: %q", stored)
	}
	// A value that is moved to another cluster in etcd.
	moved := w.resource("").Key("bad", at.namespace, at.name)
	if _, err := w.store.RawClient().Put(t.Context(), w.store.Prefix()+moved.Path(), string(stored)); err != nil {
		t.Fatal(err)
	}
	m, _, err := w.store.Metadata(t.Context(), moved)
	if err == nil {
		t.Errorf("metadata of a moved value: %+v", m)
	}
	passes := !values.IsCorrupt(err) // to the cipher it looks like a value with another key
	if passes {
		if e, more := received(t, watched); more && e.Type != watch.Error {
			t.Errorf("the watch goes on after a value that may be readable later: %v", e)
		}
	} else {
		expect(t, watched, "DELETED bad/x")
	}
	w.badObject(t, at, passes)
	w.ended()
	w.start()
	w.badObject(t, at, passes)
	good := w.empty()
	w.ok(w.apis[0].Get(in("c1"), w.key(at), storage.GetOptions{}, good), "get after a restart")
	if got := w.value(good); got != "plain-text" {
		t.Errorf("after a restart: %q", got)
	}
	if _, rev, err := w.store.Metadata(t.Context(), w.resource("").Key("c1", at.namespace, at.name)); err != nil || rev == 0 {
		t.Errorf("metadata at revision %d: %v", rev, err)
	}
	w.repaired(t, at)
}

func (w *world) stored(t *testing.T, c cluster.Name, at object) []byte {
	t.Helper()
	resp, err := w.store.RawClient().Get(t.Context(), w.store.Prefix()+w.resource("").Key(c, at.namespace, at.name).Path())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	return resp.Kvs[0].Value
}

// New writes use the first key of the configuration. Values under the old key are reported as
// stale, and an update without changes encrypts them again. Then the old key can be removed.
func TestEncryptionKeyRotates(t *testing.T) {
	for _, f := range []flavour{natives(), customs()} {
		t.Run(f.name, func(t *testing.T) {
			at := object{"ns", "x"}
			w := &world{TB: t, flavour: f, dir: t.TempDir()}
			seen := &staleness{}
			begin := func(providers ...string) {
				if w.encryption = nil; len(providers) > 0 {
					w.encryption = storetest.Encrypting(t, providers...)
				}
				s := serve(t, here(store.Options{Dir: w.dir, Version: "1.36", NoSync: true, Encryption: w.encryption}))
				seen.store = s
				s.Feed().Follow(seen)
				w.store, w.apis, w.ended = s, w.storages(w, s), s.Close
				w.ok(s.Feed().Start(t.Context()), "start the feed")
			}
			begin() // before encryption is configured
			create(t, w.store, "c1")
			w.put(space{cluster: "c1"}, at, "kept")
			for _, providers := range [][]string{
				{storetest.AESGCM("one"), storetest.Plain}, {storetest.AESGCM("two", "one")}, {storetest.Keys("secretbox", "three"), storetest.AESGCM("two")}, {storetest.Plain, storetest.Keys("secretbox", "three")}, {},
			} {
				w.ended()
				begin(providers...)
				if len(providers) > 0 && !seen.stale["x"] {
					t.Errorf("with %v the value is not stale", providers)
				}
				before := w.stored(t, "c1", at)
				got := w.empty()
				w.ok(w.apis[0].GuaranteedUpdate(in("c1"), w.key(at), got, false, nil, func(o runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
					return o, nil, nil
				}, nil), "update with %v", providers)
				if w.value(got) != "kept" {
					t.Errorf("with %v: %q", providers, w.value(got))
				}
				if after := w.stored(t, "c1", at); len(providers) > 0 && bytes.Equal(before, after) {
					t.Errorf("with %v the value was not rewritten: %q", providers, after)
				}
			}
			w.ended()
		})
	}
}

// staleness records by name which values are stale.
type staleness struct {
	store *served
	stale map[string]bool
}

func (s *staleness) Reset() { s.stale = map[string]bool{} }
func (s *staleness) Done()  {}
func (s *staleness) Apply(e feed.Event) {
	if e.Deleted() || e.Key.Root == keys.System {
		return
	}
	if _, stale, err := s.store.Values().Transformer(e.Key.GroupResource()).Open(context.Background(), e.Value, values.Path(e.Key.Path())); err == nil {
		s.stale[e.Key.Name] = stale
	}
}

// While values cannot be decrypted, lists and watches that would miss them fail, because clients
// would take the objects for deleted. Other clusters do not notice. Once the values can be
// decrypted, caches have them.
func TestValuesThatCannotBeDecryptedNow(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.ended()
		providers := func(names ...string) value.ResourceTransformers {
			return storetest.Encrypting(t, storetest.AESGCM(names...))
		}
		present := switched{now: &atomic.Pointer[value.ResourceTransformers]{}}
		w.encryption = present
		present.to(providers("one"))
		w.start()
		create(t, w.store, "c1", "c2")
		w.put(space{cluster: "c1"}, object{"ns", "x"}, "v")
		present.to(providers("two"))
		w.put(space{cluster: "c2"}, object{"ns", "y"}, "v")
		w.ended()
		w.start()
		if w.name == customs().name {
			w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
		}
		selected := everything("0")
		selected.Predicate.Label = labels.SelectorFromSet(labels.Set{"a": "b"})
		for _, o := range []storage.ListOptions{everything(""), everything("0"), selected} {
			for _, c := range []cluster.Name{"c1", cluster.All} {
				if got, err := w.listed(in(c), w.root, o); err == nil {
					t.Errorf("list of %s without a value: %v", c, got)
				}
			}
			if _, err := w.listed(in("c2"), w.root, o); err != nil {
				t.Errorf("list of a cluster whose values can be decrypted: %v", err)
			}
		}
		if watched, err := w.apis[0].Watch(in(cluster.All), w.root, everything("0")); err == nil {
			for e := next(t, watched); e.Type != watch.Error; e = next(t, watched) {
				if e.Type != watch.Added || named(e) != "ADDED c2/y" {
					t.Fatalf("watch without a value: %v", e)
				}
			}
			watched.Stop()
		}
		present.to(providers("two", "one"))
		eventually(t, "caches have the values", func() bool {
			got, err := w.listed(in(cluster.All), w.root, everything("0"))
			return err == nil && slices.Equal(got, []string{"c1/x", "c2/y"})
		})
		watched, err := w.apis[0].Watch(in(cluster.All), w.root, selected)
		w.ok(err, "watch")
		defer watched.Stop()
	})
}

// A switched is an encryption configuration that changes.
type switched struct {
	now *atomic.Pointer[value.ResourceTransformers]
	of  schema.GroupResource
}

func (s switched) to(now value.ResourceTransformers) { s.now.Store(&now) }

func (s switched) TransformerForResource(r schema.GroupResource) value.Transformer {
	return switched{s.now, r}
}

func (s switched) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	return (*s.now.Load()).TransformerForResource(s.of).TransformFromStorage(ctx, data, at)
}

func (s switched) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	return (*s.now.Load()).TransformerForResource(s.of).TransformToStorage(ctx, data, at)
}

// Only the configured resources are encrypted, both built-in and custom ones.
func TestEncryptionByResource(t *testing.T) {
	for resource, want := range map[string]string{
		"*.*": "configmaps widgets", "widgets.example.com": "widgets", "*.example.com": "widgets", "configmaps": "configmaps", "*.": "configmaps",
	} {
		t.Run(resource, func(t *testing.T) {
			s := serve(t, here(store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true, Encryption: storetest.EncryptingOnly(t, resource, storetest.AESGCM("one"))}))
			defer s.Close()
			var got []string
			for _, f := range []flavour{natives(), customs()} {
				api := f.storages(t, s)[0]
				if f.name == "native" {
					create(t, s, "c1")
				}
				w := &world{TB: t, flavour: f, store: s, apis: []storage.Interface{api}}
				w.put(space{cluster: "c1"}, object{"ns", "x"}, "v")
				if values.IsEncrypted(w.stored(t, "c1", object{"ns", "x"})) {
					got = append(got, f.resource("").Resource)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("encrypted: %v, want %s", got, want)
			}
		})
	}
}

// Without the keys, the error of a read names the flag of the encryption configuration.
func TestEncryptionForgotten(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.ended()
		w.encryption = storetest.Encrypting(t, storetest.AESGCM("one"))
		w.start()
		create(t, w.store, "c1")
		w.put(space{cluster: "c1"}, object{"ns", "x"}, "v")
		w.ended()
		w.encryption = nil
		w.start()
		_, _, err := w.store.Read(t.Context(), w.resource("").Key("c1", "ns", "x"))
		if err == nil || !strings.Contains(err.Error(), "--encryption-provider-config") {
			t.Errorf("read without the key: %v", err)
		}
	})
}
