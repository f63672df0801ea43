package cacher

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// pageSizes records the bytes of the largest page that is read.
type pageSizes struct {
	kubernetes.Interface
	largest atomic.Int64
}

// List implements [kubernetes.Interface].
func (p *pageSizes) List(ctx context.Context, prefix string, o kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	resp, err := p.Interface.List(ctx, prefix, o)
	var bytes int64
	for _, kv := range resp.Kvs {
		bytes += int64(len(kv.Value))
	}
	p.largest.Store(max(p.largest.Load(), bytes)) // one cache is filled
	return resp, err
}

// A cache is filled in pages of limited bytes, however large the objects are.
func TestFillReadsSmallPages(t *testing.T) {
	const objects, size = 40, 800_000
	s := open(t, "c1")
	for i := range objects {
		create(t, s, fmt.Sprint("o", i), strings.Repeat("x", size))
	}
	pages := &pageSizes{}
	g := New(s, func() int64 { return 0 })
	g.Client = func() *kubernetes.Client {
		c := s.Client()
		pages.Interface, c.Kubernetes = c.Kubernetes, pages
		return c
	}
	cache := start(t, s, g)
	if err := cache.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list corev1.ConfigMapList
	if err := cache.GetList(storetest.In("c1"), configMaps.Prefix()+"/c1", storetest.Everything("0"), &list); err != nil || len(list.Items) != objects {
		t.Fatalf("%d objects, %v", len(list.Items), err)
	}
	most := max(fillBytes, etcd.FirstPage*size) + size
	if n := pages.largest.Load(); n == 0 || n > int64(most) {
		t.Errorf("the largest page has %d bytes, want at most %d", n, most)
	}
}
