package store

import (
	"context"
	"sync/atomic"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/etcd"
)

// fillBytes is about the size of a page that fills a cache, as stored.
const fillBytes = 16 << 20

// A cacheSource is the storage that fills a watch cache. It has a client of its own, and
// reads pages of limited bytes: the reflector of the cache limits only their objects, and a
// page is in memory twice while it is decoded.
type cacheSource struct {
	etcd3Storage
	client *kubernetes.Client
	page   atomic.Int64 // objects of the next page; 0 before the first
}

// GetList implements [storage.Interface].
func (f *cacheSource) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	page := max(etcd.FirstPage, f.page.Load())
	if o.Predicate.Continue == "" {
		page = etcd.FirstPage // objects may have grown since the cache was filled before
	}
	o.Predicate.Limit = min(o.Predicate.Limit, page)
	var bytes int64
	err := f.etcd3Storage.GetList(context.WithValue(ctx, bytesKey{}, &bytes), key, o, list)
	if limit := o.Predicate.Limit; err == nil && limit > 0 {
		f.page.Store(etcd.NextPage(limit, bytes, fillBytes))
	}
	return err
}

// Close closes the storage and its client.
func (f *cacheSource) Close() {
	f.etcd3Storage.Close()
	_ = f.client.Close() // reports only that its context ended
}

// bytesKey is the key of a counter of the bytes that lists in a context read from etcd.
type bytesKey struct{}

// countBytes adds the bytes of a list to the counter of its context.
func countBytes(ctx context.Context, resp *kubernetes.ListResponse) {
	n, ok := ctx.Value(bytesKey{}).(*int64)
	if !ok {
		return
	}
	for _, kv := range resp.Kvs {
		*n += int64(len(kv.Key) + len(kv.Value))
	}
}
