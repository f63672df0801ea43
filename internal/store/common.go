package store

import (
	"bytes"
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
)

// Several reports whether other processes may serve the same data.
func (s *Store) Several() bool { return s.horizon != nil }

// Common returns what all processes that serve the same data have in common under a
// name. If there is nothing yet, create makes it; of several processes at once, one does
// so for all.
func (s *Store) Common(ctx context.Context, name string, create func() ([]byte, error)) ([]byte, error) {
	key := s.commonKey(name)
	read, err := s.backend.client.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(read.Kvs) > 0 {
		return read.Kvs[0].Value, nil
	}
	made, err := create()
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

// Agree has decide tell what all processes that serve the same data are to have in common
// under a name from now on, of what they have in common there, nil for nothing. An error
// of it is returned, and changes nothing.
func (s *Store) Agree(ctx context.Context, name string, decide func(common []byte) ([]byte, error)) error {
	key := s.commonKey(name)
	for {
		read, err := s.backend.client.Get(ctx, key)
		if err != nil {
			return err
		}
		var common []byte
		var rev int64
		if len(read.Kvs) > 0 {
			common, rev = read.Kvs[0].Value, read.Kvs[0].ModRevision
		}
		next, err := decide(common)
		if err != nil || rev > 0 && bytes.Equal(next, common) {
			return err
		}
		resp, err := s.backend.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).Then(clientv3.OpPut(key, string(next))).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
	}
}

func (s *Store) commonKey(name string) string {
	return s.prefix + Key{Resource: Resource{Root: System, Resource: "common"}, Cluster: cluster.Admin, Name: name}.full()
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
