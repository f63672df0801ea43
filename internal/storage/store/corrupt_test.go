package store

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// A keyService is a transformer that can be made unavailable.
type keyService struct {
	value.ResourceTransformers
	away atomic.Bool
}

var errAway = errors.New("the key service is away")

func (s *keyService) TransformerForResource(gr schema.GroupResource) value.Transformer {
	return decrypting{s.ResourceTransformers.TransformerForResource(gr), s}
}

type decrypting struct {
	value.Transformer
	by *keyService
}

func (d decrypting) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	if d.by.away.Load() {
		return nil, false, errAway
	}
	return d.Transformer.TransformFromStorage(ctx, data, at)
}

// openEncrypted opens a store with a key service. Its feed is not started.
func openEncrypted(t testing.TB) (*Store, *keyService) {
	t.Helper()
	service := &keyService{ResourceTransformers: storetest.Encrypting(t, storetest.AESGCM("one"), storetest.Plain)}
	s, err := Open(t.Context(), here(Options{Dir: t.TempDir(), Version: "1.36", NoSync: true, Encryption: service}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, service
}

// An error of reading a value counts as corrupt only if no key and no other program could
// read the value. A sweep passes all errors to its caller.
func TestErrorsThatPassAreNotCorrupt(t *testing.T) {
	s, service := openEncrypted(t)
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/ns/good", configMap("ns", "good", "v"), nil, 0); err != nil {
		t.Fatal(err)
	}
	r := keys.NativeResource(configMaps)
	at := func(name string) keys.Key { return r.Key("c1", "ns", name) }
	sealed := func(k keys.Key, plain string) string {
		v, err := s.values.Transformer(configMaps).Seal(t.Context(), []byte(plain), values.Path(k.Path()))
		if err != nil {
			t.Fatal(err)
		}
		return string(v)
	}
	for name, v := range map[string]string{
		"half": sealed(at("half"), `{"metadata":{"finalizers":`), "empty": sealed(at("empty"), ""), "moved": sealed(at("good"), "{}"),
		"newer": sealed(at("newer"), `{"apiVersion":"v9","kind":"ConfigMap","metadata":{"namespace":"ns","name":"newer","finalizers":["x"]}}`),
		"other": "k8s:enc:aesgcm:v1:other:xxxxxxxxxxxxxxxxxxxxxxxxxxxx",
	} {
		if _, err := s.RawClient().Put(t.Context(), s.prefix+at(name).Path(), v); err != nil {
			t.Fatal(err)
		}
	}
	check := func(corrupt, passing string) {
		t.Helper()
		err := s.Sweep(t.Context(), cluster.Name("c1"), r, func(page []Item) error {
			for _, i := range page {
				_, err := i.Object(t.Context())
				_, _, read := s.Read(t.Context(), i.Key)
				if values.IsCorrupt(err) != strings.Contains(corrupt, i.Name) || (err != nil && !values.IsCorrupt(err)) != strings.Contains(passing, i.Name) || values.IsCorrupt(err) != values.IsCorrupt(read) {
					t.Errorf("%s: %v and %v are corrupt: %v", i.Name, err, read, values.IsCorrupt(err))
				}
				if i.Name != "newer" && (values.IsCorrupt(i.Err) != values.IsCorrupt(err) || (i.Err == nil) != (err == nil)) {
					t.Errorf("%s: the sweep has %v", i.Name, i.Err)
				}
				if i.Name == "newer" && i.Err == nil && len(i.Metadata.Finalizers) != 1 {
					t.Errorf("%s: the sweep has %+v", i.Name, i.Metadata)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	check("half empty", "moved newer other") // a moved value looks encrypted with an unknown key
	service.away.Store(true)
	check("", "good half empty moved newer other")
}

// Renew retries values that cannot be decrypted now.
func TestRenewWaitsForTheKeyService(t *testing.T) {
	s, service := openEncrypted(t)
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", "v"), nil, 0); err != nil {
		t.Fatal(err)
	}
	age(t, s, "c1", "x")
	service.away.Store(true)
	if _, err := s.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	service.away.Store(false)
	if _, err := s.Renew(t.Context()); err != nil || oldValues(t, s) != 0 {
		t.Errorf("%d old values, %v", oldValues(t, s), err)
	}
}
