package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Place is a place among the objects of a resource in all clusters, in the order of their
// keys: an object, or the beginning of a cluster if Name is empty.
type Place struct {
	Cluster         cluster.Name
	Namespace, Name string
}

// Page returns at most limit objects of a resource after a place, and whether there are more.
// The pages of all clusters are one range of keys. The items have no metadata.
func (s *Store) Page(ctx context.Context, r keys.Resource, after Place, limit int64) (page []Item, more bool, err error) {
	start := s.prefix + r.Prefix() + "/"
	end := clientv3.GetPrefixRangeEnd(start)
	switch {
	case after.Name != "":
		start = s.prefix + r.Key(after.Cluster, after.Namespace, after.Name).Path() + "\x00"
	case after.Cluster != "":
		start += string(after.Cluster) + "/"
	}
	resp, err := s.backend.Client.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(limit))
	if err != nil {
		return nil, false, err
	}
	for _, kv := range resp.Kvs {
		k, ok := keys.Parse(string(kv.Key)[len(s.prefix):])
		if !ok {
			return nil, false, fmt.Errorf("malformed key %q", kv.Key)
		}
		page = append(page, Item{Key: k, Revision: kv.ModRevision, value: kv.Value, store: s})
	}
	return page, resp.More, nil
}
