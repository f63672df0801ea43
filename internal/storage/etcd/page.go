package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A range is read in pages. A page must fit into memory, but there should be few: for each
// page etcd counts all remaining keys of the range.
const (
	// FirstPage is the number of keys of the first page. Each value may be as large as the
	// maximum request.
	FirstPage = 16

	minPage = 10
	maxPage = 50_000
)

// NextPage returns the number of keys of the next page of a range. The last page had limit
// keys and the given bytes; the next one should have want bytes.
func NextPage(limit, bytes, want int64) int64 {
	each := max(1, bytes/limit)
	return min(max(minPage, want/each), maxPage, 4*limit)
}

// A Pager reads the keys that begin with a prefix, page by page.
type Pager struct {
	kv        clientv3.KV
	next, end string // the keys that are not read yet
	limit     int64  // keys of the next page
	bytes     int64  // about the size of a page
	done      bool
}

// NewPager returns a pager for pages of about the given bytes. It starts with a small page,
// because it does not know the size of the values.
func NewPager(kv clientv3.KV, prefix string, bytes int64) *Pager {
	return &Pager{kv: kv, next: prefix, end: clientv3.GetPrefixRangeEnd(prefix), limit: FirstPage, bytes: bytes}
}

// More reports whether there may be another page.
func (p *Pager) More() bool { return !p.done }

// Next reads the next page. Without the option WithRev, it has the values at the current
// revision. The option WithLimit replaces the size of the page.
func (p *Pager) Next(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	page, err := p.kv.Get(ctx, p.next, append([]clientv3.OpOption{clientv3.WithRange(p.end), clientv3.WithLimit(p.limit)}, opts...)...)
	if err != nil {
		return nil, err
	}
	if p.done = !page.More; p.done {
		return page, nil
	}
	var bytes int64
	for _, kv := range page.Kvs {
		bytes += int64(len(kv.Key) + len(kv.Value))
	}
	p.limit = NextPage(p.limit, bytes, p.bytes)
	p.next = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	return page, nil
}

// Read reports whether a key is in the part of the range that was read.
func (p *Pager) Read(key string) bool { return p.done || key < p.next }
