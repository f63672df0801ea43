package store

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"

	"github.com/unforked/kcp/internal/etcd"
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
	s, err := tryOpen(t, dir, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	cm := configMapsOf(t, s)
	create(t, s, "c1")
	for i := range objects {
		name := fmt.Sprint("o", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, strings.Repeat("x", size)), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()

	s, err = tryOpen(t, dir, "1.36")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pages := &pageSizes{Interface: s.guard.Interface}
	s.guard.Interface = pages
	cm = configMapsOf(t, s)
	startFeeds(t, s)
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything("0"), &list); err != nil || len(list.Items) != objects {
		t.Fatalf("%d objects, %v", len(list.Items), err)
	}
	most := max(fillBytes, etcd.FirstPage*size) + size
	if n := pages.largest.Load(); n == 0 || n > int64(most) {
		t.Errorf("the largest page has %d bytes, want at most %d", n, most)
	}
}
