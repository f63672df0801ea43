package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
)

// Several reports whether other processes may serve the same data.
func (s *Store) Several() bool { return s.horizon != nil }

// Common returns what all processes that serve the same data have in common under a
// name. If there is nothing yet, make makes it; of several processes at once, one does
// so for all.
func (s *Store) Common(ctx context.Context, name string, make func() ([]byte, error)) ([]byte, error) {
	key := s.prefix + Key{Resource: Resource{Root: System, Resource: "common"}, Cluster: cluster.Admin, Name: name}.full()
	read, err := s.backend.client.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(read.Kvs) > 0 {
		return read.Kvs[0].Value, nil
	}
	made, err := make()
	if err != nil {
		return nil, err
	}
	resp, err := s.backend.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(made))).Else(clientv3.OpGet(key)).Commit()
	if err != nil || resp.Succeeded {
		return made, err
	}
	if kv := first(resp.Responses[0].GetResponseRange()); kv != nil {
		made = kv.Value
	}
	return made, nil
}

// Reachable asks etcd whether it answers.
func (s *Store) Reachable(ctx context.Context) error {
	if s.horizon == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, glance)
	defer cancel()
	_, err := s.horizon.now(ctx)
	return err
}
