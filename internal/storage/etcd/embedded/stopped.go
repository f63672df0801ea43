package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// ReadStopped returns the last value of a key in the files of a member that no process runs, nil if the
// database has none: then it is in the log, or the directory is new. It returns an error if the files are
// damaged.
func ReadStopped(dir, key string) (last []byte, err error) {
	if err := checkFiles(memberDir(dir)); err != nil {
		return nil, fmt.Errorf("%w; restore a backup", err)
	}
	db, err := bbolt.Open(DatabaseFile(dir), 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return nil, err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		all := tx.Bucket([]byte("key"))
		if all == nil {
			return nil
		}
		return all.ForEach(func(_, v []byte) error { // by revision
			if !bytes.Contains(v, []byte(key)) {
				return nil
			}
			var kv mvccpb.KeyValue
			if err := kv.Unmarshal(v); err != nil {
				return err
			}
			if string(kv.Key) == key {
				last = bytes.Clone(kv.Value)
			}
			return nil
		})
	})
	return last, errors.Join(err, db.Close())
}

// DatabaseSize returns the size of the database file in a directory; 0 if there is none.
func DatabaseSize(dir string) int64 {
	info, err := os.Stat(DatabaseFile(dir))
	if err != nil {
		return 0
	}
	return info.Size()
}
