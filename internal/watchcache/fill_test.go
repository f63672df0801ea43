package watchcache

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"

	"github.com/unforked/kcp/internal/etcd"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/storetest"
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
	dir := t.TempDir()
	o := store.Options{Dir: dir, Version: "1.36", NoSync: true}
	s := serve(t, o)
	cm := configMapsOf(t, s)
	create(t, s, "c1")
	for i := range objects {
		name := fmt.Sprint("o", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, strings.Repeat("x", size)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()

	s = serve(t, o)
	defer s.Close()
	pages := &pageSizes{}
	s.client = func() *kubernetes.Client {
		c := s.Store.Client()
		pages.Interface, c.Kubernetes = c.Kubernetes, pages
		return c
	}
	cm = configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything("0"), &list); err != nil || len(list.Items) != objects {
		t.Fatalf("%d objects, %v", len(list.Items), err)
	}
	most := max(fillBytes, etcd.FirstPage*size) + size
	if n := pages.largest.Load(); n == 0 || n > int64(most) {
		t.Errorf("the largest page has %d bytes, want at most %d", n, most)
	}
}
