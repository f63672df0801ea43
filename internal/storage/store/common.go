package store

import (
	"bytes"
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Several reports whether other processes may use the same data.
func (s *Store) Several() bool { return s.revisions != nil }

// Common returns the value under a name that all processes with the same data share. If
// there is none, create makes one; of several processes at once, the first decides.
func (s *Store) Common(ctx context.Context, name string, create func() ([]byte, error)) ([]byte, error) {
	key := s.commonKey(name)
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

// Agree replaces the shared value under a name. decide gets the present value, or nil, and
// returns the new one. It may be called several times. If it returns an error, Agree
// returns that and changes nothing.
func (s *Store) Agree(ctx context.Context, name string, decide func(common []byte) ([]byte, error)) error {
	key := s.commonKey(name)
	for {
		read, err := s.backend.Client.Get(ctx, key)
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
		resp, err := s.backend.Client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).Then(clientv3.OpPut(key, string(next))).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
	}
}

func (s *Store) commonKey(name string) string {
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

// Reachable returns an error if etcd does not answer.
func (s *Store) Reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, etcd.ReadTimeout)
	defer cancel()
	if s.revisions == nil {
		_, err := s.Newest(ctx)
		return err
	}
	_, _, err := s.revisions.Read(ctx)
	return err
}
