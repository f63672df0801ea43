package store

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Note is a value of the server's own, which belongs to no tenant. No watch cache has it.
type Note struct {
	Key keys.Key
	// Value is the new value; nil deletes the note.
	Value []byte
}

// WriteNotes writes notes in one transaction, whatever their present values, and returns its
// revision. If ctx is that of a loop, only the process that runs the loops can write.
func (s *Store) WriteNotes(ctx context.Context, notes []Note) (int64, error) {
	ops := make([]clientv3.Op, len(notes))
	for i, n := range notes {
		if err := n.Key.Validate(); err != nil {
			return 0, err
		}
		if ops[i] = clientv3.OpDelete(s.prefix + n.Key.Path()); n.Value != nil {
			ops[i] = clientv3.OpPut(s.prefix+n.Key.Path(), string(n.Value))
		}
	}
	resp, err := s.guard.kv.Txn(ctx).If(election.TermOf(ctx).Compares()...).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if !resp.Succeeded {
		return 0, election.ErrNotLeading
	}
	return resp.Header.Revision, nil
}

// ReadNotes returns the values of notes as of one revision, nil for those that do not exist.
func (s *Store) ReadNotes(ctx context.Context, of []keys.Key) ([][]byte, error) {
	resp, err := s.readNotes(ctx, of)
	if err != nil {
		return nil, err
	}
	values := make([][]byte, len(of))
	for i := range of {
		if kv := first(resp.Responses[i].GetResponseRange()); kv != nil {
			values[i] = kv.Value
		}
	}
	return values, nil
}

// readNotes reads the keys of notes, and then those in further.
func (s *Store) readNotes(ctx context.Context, of []keys.Key, further ...keys.Key) (*clientv3.TxnResponse, error) {
	ops := make([]clientv3.Op, 0, len(of)+len(further))
	for _, k := range slices.Concat(of, further) {
		if err := k.Validate(); err != nil {
			return nil, err
		}
		ops = append(ops, clientv3.OpGet(s.prefix+k.Path()))
	}
	resp, err := s.guard.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		outage.Note(ctx, err)
		return nil, err
	}
	s.guard.saw(resp.Header.Revision)
	return resp, nil
}

// UpdateNotes changes notes in one transaction, each in a cluster of its own. change returns the
// new value of a note; value is nil if there is none. Clusters that do not accept all writes are
// left out. After an error, the notes have been changed or not.
func (s *Store) UpdateNotes(ctx context.Context, of []keys.Key, change func(k keys.Key, value []byte) ([]byte, error)) error {
	fences := make([]keys.Key, len(of))
	for i, k := range of {
		fences[i] = keys.Fence(k.Cluster)
	}
	for range attempts {
		read, err := s.readNotes(ctx, of, fences...)
		if err != nil {
			return err
		}
		var compares []clientv3.Cmp
		var ops []clientv3.Op
		for i, k := range of {
			fence := first(read.Responses[len(of)+i].GetResponseRange())
			if fence == nil || State(fence.Value) != Active {
				continue
			}
			note := cmp.Or(first(read.Responses[i].GetResponseRange()), &mvccpb.KeyValue{})
			value, err := change(k, note.Value)
			if err != nil {
				return err
			}
			if bytes.Equal(value, note.Value) {
				continue
			}
			compares = append(compares, clientv3.Compare(clientv3.ModRevision(s.prefix+k.Path()), "=", note.ModRevision),
				clientv3.Compare(clientv3.ModRevision(string(fence.Key)), "=", fence.ModRevision))
			ops = append(ops, clientv3.OpPut(s.prefix+k.Path(), string(value)))
		}
		if len(ops) == 0 {
			return nil
		}
		resp, err := s.guard.kv.Txn(ctx).If(compares...).Then(ops...).Commit()
		if err != nil {
			return err
		}
		if s.guard.saw(resp.Header.Revision); resp.Succeeded {
			return nil
		}
	}
	return ErrChanged
}

// Touch writes a note without a value in a cluster that accepts creations, and returns the revision.
// It returns 0 if another process changed the note or the fence of the cluster meanwhile.
func (s *Store) Touch(ctx context.Context, k keys.Key) (int64, error) {
	f, err := s.guard.allowed(ctx, k.Cluster, true)
	if err != nil {
		return 0, err
	}
	key, fenced := s.prefix+k.Path(), s.prefix+keys.Fence(k.Cluster).Path()
	now, err := s.guard.kv.Get(ctx, key, clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	var at int64
	if len(now.Kvs) > 0 {
		at = now.Kvs[0].ModRevision
	}
	txn := s.guard.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", at), clientv3.Compare(clientv3.ModRevision(fenced), "=", f.rev))
	resp, err := committed(ctx, txn.Then(clientv3.OpPut(key, "-")).Else(clientv3.OpGet(fenced)))
	if err != nil {
		return 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if !resp.Succeeded {
		s.guard.read(k.Cluster, resp.Responses[0].GetResponseRange(), resp.Header.Revision)
		return 0, nil
	}
	return resp.Header.Revision, nil
}
