package store

import (
	"bytes"
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// SharedValue returns the value under a name that all processes with the same data share. If
// there is none, create makes one. If several processes make one at once, the first one stays.
func (s *Store) SharedValue(ctx context.Context, name string, create func() ([]byte, error)) ([]byte, error) {
	key := s.sharedKey(name)
	read, err := s.backend.Client.Get(ctx, key)
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
	resp, err := s.backend.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(made))).Else(clientv3.OpGet(key)).Commit()
	if err != nil || resp.Succeeded {
		return made, err
	}
	if kv := first(resp.Responses[0].GetResponseRange()); kv != nil {
		made = kv.Value
	}
	return made, nil
}

// UpdateSharedValue replaces the shared value under a name. update gets the present value, or
// nil, and returns the new one. It may be called several times. If it returns an error,
// UpdateSharedValue returns that and changes nothing.
func (s *Store) UpdateSharedValue(ctx context.Context, name string, update func(present []byte) ([]byte, error)) error {
	key := s.sharedKey(name)
	for {
		read, err := s.backend.Client.Get(ctx, key)
		if err != nil {
			return err
		}
		var present []byte
		var rev int64
		if len(read.Kvs) > 0 {
			present, rev = read.Kvs[0].Value, read.Kvs[0].ModRevision
		}
		next, err := update(present)
		if err != nil || rev > 0 && bytes.Equal(next, present) {
			return err
		}
		resp, err := s.backend.Client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).Then(clientv3.OpPut(key, string(next))).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
	}
}

func (s *Store) sharedKey(name string) string {
	return s.prefix + keys.SystemKey(cluster.Admin, "common", name).Path()
}

// Mark sets a mark with a name, and returns the revision at which it is set.
func (s *Store) Mark(ctx context.Context, name string) (int64, error) {
	resp, err := s.backend.Client.Put(ctx, s.prefix+keys.Note(name), "")
	if err != nil {
		return 0, err
	}
	s.guard.saw(resp.Header.Revision)
	return resp.Header.Revision, nil
}

// Marked returns the revision at which a mark was set last, or 0.
func (s *Store) Marked(ctx context.Context, name string) (int64, error) {
	resp, err := s.backend.Client.Get(ctx, s.prefix+keys.Note(name))
	if err != nil || len(resp.Kvs) == 0 {
		return 0, err
	}
	return resp.Kvs[0].ModRevision, nil
}
