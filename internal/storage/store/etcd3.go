package store

import (
	"fmt"

	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// Objects are the objects of one resource in all clusters, and how they are encoded.
type Objects struct {
	Config *storagebackend.ConfigForResource
	// Root is the start of their keys.
	Root  string
	Codec runtime.Codec
	// Decoder wraps upstream's decoder; nil to use it as it is.
	Decoder func(etcd3.Decoder) etcd3.Decoder
	// New and NewList return an empty object and an empty list.
	New, NewList func() runtime.Object
}

// An Etcd3 is upstream's storage in etcd, by keys with a cluster.
type Etcd3 interface {
	storage.Interface
	Close()
}

// Client returns a client for [Store.Etcd3] with a watch stream of its own. The guard adds
// its compares to every write. The caller closes the client.
func (s *Store) Client() *kubernetes.Client {
	return &kubernetes.Client{Client: s.backend.Watcher(), Kubernetes: s.guard}
}

// Etcd3 returns upstream's storage, for requests of clients.
func (s *Store) Etcd3(c *kubernetes.Client, o Objects) (Etcd3, error) {
	return s.etcd3(c, o, s.values.Transformer(o.Config.GroupResource))
}

// Lenient returns upstream's storage for reads that must not fail on a corrupt value, or on one
// that is skipped by [values.WithSkip]. The codec must not fail either, see [Store.CacheCodec].
func (s *Store) Lenient(c *kubernetes.Client, o Objects) (Etcd3, error) {
	return s.etcd3(c, o, s.values.Transformer(o.Config.GroupResource).Lenient())
}

func (s *Store) etcd3(c *kubernetes.Client, o Objects, t values.Transformer) (Etcd3, error) {
	v := s.epoch
	decoder := etcd3.NewDefaultDecoder(o.Codec, v)
	if o.Decoder != nil {
		decoder = o.Decoder(decoder)
	}
	return etcd3.New(c, nil, o.Codec, o.New, o.NewList, s.prefix, o.Root, o.Config.GroupResource, t, o.Config.LeaseManagerConfig, decoder, v)
}

// CacheCodec returns a codec that never fails: it returns a stand-in for a value that cannot
// be decoded. empty returns an empty object. share, which may be nil, gets every decoded
// object, to share equal parts of objects.
func (s *Store) CacheCodec(c runtime.Codec, empty func() runtime.Object, share func(runtime.Object)) runtime.Codec {
	return values.CacheCodec{Codec: c, Empty: empty, Stamps: s.stamps, Failed: func() { s.standIns.Store(true) }, Share: share}
}

// StandIns reports whether a stand-in was ever made. Only then are lists searched for them.
func (s *Store) StandIns() bool { return s.standIns.Load() }

// CheckDecoded returns an error for the stand-in of a value of r that cannot be decoded.
func (s *Store) CheckDecoded(r keys.Resource, o runtime.Object) error {
	if !s.standIns.Load() {
		return nil
	}
	accessor, err := meta.Accessor(o)
	if err != nil {
		return nil //nolint:nilerr // no object, no stand-in
	}
	if why := accessor.GetAnnotations()[values.Undecodable]; why != "" {
		return apierrors.NewInternalError(fmt.Errorf("the stored %s %s/%s cannot be decoded: %s", r.Resource, accessor.GetNamespace(), accessor.GetName(), why))
	}
	return nil
}
