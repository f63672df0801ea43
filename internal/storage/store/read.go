package store

import (
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// namesPage is the number of keys in a page of [Store.KeysNamed].
const namesPage = 2000

// Read returns an object from etcd and its revision, or nil if there is none.
func (s *Store) Read(ctx context.Context, k keys.Key) (runtime.Object, int64, error) {
	if err := k.Validate(); err != nil {
		return nil, 0, err
	}
	resp, err := s.backend.Client.Get(ctx, s.prefix+k.Path())
	if err != nil {
		outage.Note(ctx, err)
		return nil, 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) == 0 {
		return nil, 0, nil
	}
	obj, err := s.values.Decode(ctx, k, resp.Kvs[0].Value)
	return obj, resp.Kvs[0].ModRevision, err
}

// ReadInto reads a custom resource from etcd into o, and returns its revision, or 0 if there
// is none.
func (s *Store) ReadInto(ctx context.Context, k keys.Key, o any) (int64, error) {
	if k.Validate() != nil {
		return 0, nil // no object is stored at a malformed key
	}
	resp, err := s.backend.Client.Get(ctx, s.prefix+k.Path())
	if err != nil {
		outage.Note(ctx, err)
		return 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	return resp.Kvs[0].ModRevision, s.values.Unmarshal(ctx, k, resp.Kvs[0].Value, o)
}

// Metadata returns the metadata of an object from etcd and its revision, or 0 if there is
// none.
func (s *Store) Metadata(ctx context.Context, k keys.Key) (values.Metadata, int64, error) {
	if k.Validate() != nil {
		return values.Metadata{}, 0, nil // no object is stored at a malformed key
	}
	resp, err := s.backend.Client.Get(ctx, s.prefix+k.Path())
	if err != nil {
		return values.Metadata{}, 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) == 0 {
		return values.Metadata{}, 0, nil
	}
	m, err := s.values.Metadata(ctx, k, resp.Kvs[0].Value)
	return m, resp.Kvs[0].ModRevision, err
}

// KeysNamed returns the keys of the objects with a name in all namespaces of a cluster. It
// reads the keys of all objects of the resource in the cluster.
func (s *Store) KeysNamed(ctx context.Context, r keys.Resource, c cluster.Name, name string) ([]keys.Key, error) {
	var found []keys.Key
	for pages := etcd.NewPager(s.backend.Client, s.rangeOf(r, c), 0); pages.More(); {
		page, err := pages.Next(ctx, clientv3.WithKeysOnly(), clientv3.WithLimit(namesPage))
		if err != nil {
			return nil, err
		}
		for _, kv := range page.Kvs {
			if k, ok := keys.Parse(strings.TrimPrefix(string(kv.Key), s.prefix)); ok && k.Name == name {
				found = append(found, k)
			}
		}
	}
	return found, nil
}

// rangeOf returns the start of the etcd keys of a resource in a cluster.
func (s *Store) rangeOf(r keys.Resource, c cluster.Name) string {
	return s.prefix + r.Prefix() + "/" + string(c) + "/"
}

// A ReadCount counts what lists read from etcd.
type ReadCount struct {
	Objects int
	Bytes   int64 // of the keys and the stored values
}

type readCountKey struct{}

// CountReads returns a context in which lists from etcd are counted.
func CountReads(ctx context.Context) (context.Context, *ReadCount) {
	n := new(ReadCount)
	return context.WithValue(ctx, readCountKey{}, n), n
}

// countReads adds the result of a list to the count of its context.
func countReads(ctx context.Context, kvs []*mvccpb.KeyValue) {
	n, ok := ctx.Value(readCountKey{}).(*ReadCount)
	if !ok {
		return
	}
	n.Objects += len(kvs)
	for _, kv := range kvs {
		n.Bytes += int64(len(kv.Key) + len(kv.Value))
	}
}

// Revision returns the revision of a key, 0 if there is none, and the revision of etcd at
// which it was read.
func (s *Store) Revision(ctx context.Context, k keys.Key) (revision, at int64, err error) {
	if err := k.Validate(); err != nil {
		return 0, 0, err
	}
	resp, err := s.backend.Client.Get(ctx, s.prefix+k.Path(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) > 0 {
		revision = resp.Kvs[0].ModRevision
	}
	return revision, resp.Header.Revision, nil
}

// Count returns the number of objects of some resources that a cluster has in etcd.
func (s *Store) Count(ctx context.Context, c cluster.Name, resources ...keys.Resource) (int64, error) {
	var sum int64
	for some := range slices.Chunk(resources, etcd.MaxTxnOps) {
		ops := make([]clientv3.Op, len(some))
		for i, r := range some {
			ops[i] = clientv3.OpGet(s.rangeOf(r, c), clientv3.WithPrefix(), clientv3.WithCountOnly())
		}
		resp, err := s.guard.kv.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return 0, err
		}
		for _, r := range resp.Responses {
			sum += r.GetResponseRange().Count
		}
	}
	return sum, nil
}

// CountBelow returns the number of keys that begin with some prefixes, and the revision of the count.
// The prefixes are without [Store.Prefix].
func (s *Store) CountBelow(ctx context.Context, prefixes []string) (n, revision int64, err error) {
	ops := make([]clientv3.Op, len(prefixes))
	for i, below := range prefixes {
		ops[i] = clientv3.OpGet(s.prefix+below, clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	resp, err := s.guard.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, 0, err
	}
	for _, r := range resp.Responses {
		n += r.GetResponseRange().Count
	}
	return n, resp.Header.Revision, nil
}
