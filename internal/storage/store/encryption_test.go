package store

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// Values are authenticated with their key below the prefix, so that all data can be moved to
// another prefix. Transformers do not write into their input, because a cache of decrypted
// values keeps the key.
func TestEncryptionAuthenticates(t *testing.T) {
	r := &recorder{ResourceTransformers: storetest.Encrypting(t, storetest.AESGCM("one"))}
	s, err := Open(t.Context(), here(Options{Dir: t.TempDir(), Version: "1.36", NoSync: true, Encryption: r}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cm := configMapsOf(t, s)
	create(t, s, "c1")
	for i := range 20 {
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+fmt.Sprint(i), configMap("ns", fmt.Sprint(i), ""), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	resp, err := s.RawClient().Get(t.Context(), s.prefix+"/n/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 20 {
		t.Fatal(len(resp.Kvs), err)
	}
	here, there := values.NewKinds(s.prefix, r).Transformer(configMaps), values.NewKinds("/elsewhere", r).Transformer(configMaps)
	for _, kv := range resp.Kvs {
		below := strings.TrimPrefix(string(kv.Key), s.prefix)
		a, _, errA := here.TransformFromStorage(t.Context(), kv.Value, value.DefaultContext(kv.Key))
		b, _, errB := there.TransformFromStorage(t.Context(), kv.Value, value.DefaultContext("/elsewhere"+below))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s at another prefix: %v, %v", kv.Key, errA, errB)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, kept := range r.kept {
		if string(kept) != r.were[i] {
			t.Errorf("the key %q became %q", r.were[i], kept)
		}
		if !strings.HasPrefix(r.were[i], "/n/core/configmaps/-/c1/ns/") {
			t.Errorf("authenticated: %q", r.were[i])
		}
	}
	if len(r.kept) < 40 {
		t.Errorf("only %d values passed", len(r.kept))
	}
}

// recorder records the authenticated data of values.
type recorder struct {
	value.ResourceTransformers
	mu   sync.Mutex
	kept [][]byte
	were []string
}

func (r *recorder) TransformerForResource(gr schema.GroupResource) value.Transformer {
	return recording{r.ResourceTransformers.TransformerForResource(gr), r}
}

type recording struct {
	value.Transformer
	to *recorder
}

func (r recording) keep(at value.Context) {
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	r.to.kept = append(r.to.kept, at.AuthenticatedData())
	r.to.were = append(r.to.were, string(at.AuthenticatedData()))
}

func (r recording) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	r.keep(at)
	return r.Transformer.TransformFromStorage(ctx, data, at)
}

func (r recording) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	r.keep(at)
	return r.Transformer.TransformToStorage(ctx, data, at)
}
