package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/keys"
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
	resp, err := s.guard.kv.Txn(ctx).If(s.guard.led(ctx).compares()...).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if !resp.Succeeded {
		return 0, ErrNotLeading
	}
	return resp.Header.Revision, nil
}
