package store

import (
	"context"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// A CreateHook replaces the storing of a new object of one resource. It must store obj or
// return an error. It sets obj.Object to the stored object with its resource version, and
// must not change the map that obj.Object was.
type CreateHook func(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error

// OnCreate sets the hook of a custom resource. The steps before storing, such as admission,
// validation and dry run, are as for any resource.
func (s *Store) OnCreate(r keys.Resource, hook CreateHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.createHooks[r.Prefix()] = hook
}

// FinishCreate completes obj, of which a [CreateHook] has committed stored at a revision. It waits until
// this process knows the object.
func (s *Store) FinishCreate(ctx context.Context, c cluster.Name, stored, obj *unstructured.Unstructured, rev int64) error {
	values.SetCluster(stored, c)
	stored.SetResourceVersion(s.ResourceVersion(rev))
	obj.Object = stored.Object
	return s.Feed().Await(ctx, rev)
}

// CreateHookOf returns the create hook of a resource, nil if it has none.
func (s *Store) CreateHookOf(r keys.Resource) CreateHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.createHooks[r.Prefix()]
}

// A WriteHook completes an object of one resource before it is stored.
type WriteHook func(obj *unstructured.Unstructured)

// OnWrite sets the hook that completes objects of a custom resource in every write, after
// admission and validation.
func (s *Store) OnWrite(r keys.Resource, hook WriteHook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeHooks[r] = hook
}

// Complete calls the write hook of an object.
func (s *Store) Complete(r keys.Resource, o runtime.Object) {
	if r.Root != keys.Custom {
		return
	}
	s.mu.Lock()
	hook := s.writeHooks[r]
	s.mu.Unlock()
	if u, ok := o.(*unstructured.Unstructured); ok && hook != nil {
		hook(u)
	}
}

// writeHookOf returns the write hook of a custom resource of any identity.
func (s *Store) writeHookOf(gr schema.GroupResource) WriteHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, hook := range s.writeHooks {
		if r.GroupResource() == gr {
			return hook
		}
	}
	return nil
}

// WriteHookCodec returns the codec of a custom resource. It runs the write hook on new objects:
// in a dry run only the codec sees the object, and the answer must be that of a real request.
func (s *Store) WriteHookCodec(c values.Codec, of schema.GroupResource) runtime.Codec {
	return writeHookCodec{c, s, of}
}

type writeHookCodec struct {
	values.Codec
	store *Store
	of    schema.GroupResource
}

// Encode implements [runtime.Encoder].
func (c writeHookCodec) Encode(obj runtime.Object, w io.Writer) error {
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GetResourceVersion() == "" {
		if hook := c.store.writeHookOf(c.of); hook != nil {
			u = u.DeepCopy()
			hook(u)
			obj = u
		}
	}
	return c.Codec.Encode(obj, w)
}
