// Package values hides how an object becomes the bytes at its key and back: without the
// annotation of its cluster, in the storage version, encrypted and bound to the key.
package values

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/storage/keys"
)

// Kinds know how the objects of each resource are stored. Methods may be called
// concurrently.
type Kinds struct {
	prefix     string
	encryption value.ResourceTransformers

	mu     sync.Mutex
	native map[string]Kind // by [keys.Resource.KindPrefix]
}

// A Kind is how the objects of one resource are stored.
type Kind struct {
	Codec       Codec
	Transformer Transformer
}

// NewKinds returns the kinds of values below a prefix of etcd. Without encryption, which
// may be nil, values are stored as they are.
func NewKinds(prefix string, encryption value.ResourceTransformers) *Kinds {
	return &Kinds{prefix: prefix, encryption: encryption, native: map[string]Kind{}}
}

// Encrypts reports whether encryption is configured.
func (k *Kinds) Encrypts() bool { return k.encryption != nil }

// Transformer returns the transformer of a resource, for any identity.
func (k *Kinds) Transformer(gr schema.GroupResource) Transformer {
	t := Transformer{prefix: k.prefix}
	if k.encryption != nil {
		t.encryption = k.encryption.TransformerForResource(gr)
	}
	return t
}

// Register sets the codec of a native resource. A custom resource needs none: its objects
// are JSON.
func (k *Kinds) Register(r keys.Resource, codec Codec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.native[r.KindPrefix()] = Kind{codec, k.Transformer(r.GroupResource())}
}

// Kind returns how the objects of a resource are stored, or an error for a native resource
// that is not registered.
func (k *Kinds) Kind(r keys.Resource) (Kind, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind, ok := k.native[r.KindPrefix()]
	if !ok && r.Root == keys.Custom {
		return Kind{Codec{unstructured.UnstructuredJSONScheme}, k.Transformer(r.GroupResource())}, nil
	}
	if !ok {
		return Kind{}, fmt.Errorf("resource %s is not served", r.KindPrefix())
	}
	return kind, nil
}

// Encode returns the value to store at key for obj. It does not change obj.
func (k *Kinds) Encode(ctx context.Context, key keys.Key, obj runtime.Object) ([]byte, error) {
	kind, err := k.Kind(key.Resource)
	if err != nil {
		return nil, err
	}
	value, err := kind.Codec.encodeBare(obj)
	if err != nil {
		return nil, err
	}
	return kind.Transformer.Seal(ctx, value, Path(key.Path()))
}

// Decode returns the object that is stored as value at key: a new object of the storage
// version, with the annotation of its cluster.
func (k *Kinds) Decode(ctx context.Context, key keys.Key, value []byte) (runtime.Object, error) {
	kind, err := k.Kind(key.Resource)
	if err != nil {
		return nil, err
	}
	plain, _, err := kind.Transformer.Open(ctx, value, Path(key.Path()))
	if err != nil {
		return nil, err
	}
	return kind.Codec.decodeBare(key, plain)
}

// Unmarshal decodes the JSON that is stored as value at key into o.
func (k *Kinds) Unmarshal(ctx context.Context, key keys.Key, value []byte, o any) error {
	kind, err := k.Kind(key.Resource)
	if err != nil {
		return err
	}
	plain, _, err := kind.Transformer.Open(ctx, value, Path(key.Path()))
	if err != nil {
		return err
	}
	return corrupt(kjson.UnmarshalCaseSensitivePreserveInts(plain, o))
}

// Decrypt returns the encoded object that is stored as value at key. It does not copy a
// value that is not encrypted.
func (k *Kinds) Decrypt(ctx context.Context, key keys.Key, value []byte) ([]byte, error) {
	if key.Root == keys.System {
		return value, nil
	}
	value, _, err := k.Transformer(key.GroupResource()).Open(ctx, value, Path(key.Path()))
	return value, err
}

// Renew returns the value to store at key instead of stored, or nil if stored is current.
// full is the key with the prefix. The error is corrupt, or [ErrUnreadable], if stored
// cannot be read.
func (k Kind) Renew(ctx context.Context, key keys.Key, full Path, stored []byte) ([]byte, error) {
	framed, stale, err := k.Transformer.TransformFromStorage(ctx, stored, full)
	if err != nil {
		return nil, unreadable(err)
	}
	fresh := framed
	if key.Root == keys.Native {
		obj, err := runtime.Decode(k.Codec, framed)
		if err != nil {
			return nil, unreadable(corruptUnlessNewer(err))
		}
		if fresh, err = runtime.Encode(k.Codec, obj); err != nil {
			return nil, corrupt(err) // it decodes to what no version can express
		}
	}
	if !stale && bytes.Equal(fresh, framed) {
		return nil, nil
	}
	return k.Transformer.TransformToStorage(ctx, fresh, full)
}
