package cacher

import (
	"context"
	"sync/atomic"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// fillBytes is about the size of a page that fills a cache, as stored.
const fillBytes = 16 << 20

// A cacheSource is the storage that fills a watch cache. It has a client of its own, and
// reads pages of limited bytes: the reflector of the cache limits only their objects, and a
// page is in memory twice while it is decoded.
type cacheSource struct {
	store.Etcd3
	client *kubernetes.Client
	page   atomic.Int64 // objects of the next page; 0 before the first
	unread unread
}

// source returns the storage that fills a cache. The codec of the objects must never fail.
func (g *Group) source(o store.Objects) (*cacheSource, error) {
	client := g.Client()
	inner, err := g.store.Lenient(client, o)
	if err != nil {
		_ = client.Close() // reports only that its context ended
		return nil, err
	}
	return &cacheSource{Etcd3: inner, client: client}, nil
}

// fill reads a page of objects into the cache.
func (f *cacheSource) fill(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	page := max(etcd.FirstPage, f.page.Load())
	if o.Predicate.Continue == "" {
		page = etcd.FirstPage // objects may have grown since the cache was filled before
		f.unread.list()
	}
	o.Predicate.Limit = min(o.Predicate.Limit, page)
	ctx, read := store.CountReads(ctx)
	err := f.GetList(values.WithSkip(ctx, f.unread.missed), key, o, list)
	if limit := o.Predicate.Limit; err == nil && limit > 0 {
		f.page.Store(etcd.NextPage(limit, read.Bytes, fillBytes))
	}
	return err
}

// Close closes the storage and its client.
func (f *cacheSource) Close() {
	f.Etcd3.Close()
	_ = f.client.Close() // reports only that its context ended
}
