package store

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// An Item is a stored object that its reader decodes only as far as necessary.
type Item struct {
	keys.Key
	Revision int64
	// Metadata is set by [Store.Sweep]. It is empty if the value cannot be read; then Err is the
	// reason. [values.IsCorrupt] tells whether the value can ever be read.
	Metadata values.Metadata
	Err      error
	value    []byte
	store    *Store
}

// Object decodes the object in its storage version.
func (i Item) Object(ctx context.Context) (runtime.Object, error) {
	return i.store.values.Decode(ctx, i.Key, i.value)
}

// Bare returns the item without its value, to keep for [Store.Purge].
func (i Item) Bare() Item { return Item{Key: i.Key, Revision: i.Revision} }

// APIVersion returns the group and version in which the object is stored.
func (i Item) APIVersion(ctx context.Context) (schema.GroupVersion, error) {
	return i.store.values.APIVersion(ctx, i.Key, i.value)
}

// Size returns the size of the stored value in bytes.
func (i Item) Size() int { return len(i.value) }

// JSON returns the object as it is stored, in its storage version. It is for custom resources.
func (i Item) JSON(ctx context.Context) ([]byte, error) {
	return i.store.values.Decrypt(ctx, i.Key, i.value)
}
