package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Inspect checks the files of an etcd that no process uses, in the directory dir. It returns an
// error if they are damaged, or if a program for a Kubernetes minor version cannot read the
// data that the key describes.
func Inspect(dir, key, kubernetes string) error {
	if err := checkFiles(memberDir(dir)); err != nil {
		return fmt.Errorf("%w; restore a backup", err)
	}
	db, err := bbolt.Open(DatabaseFile(dir), 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return err
	}
	var last []byte
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
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if last == nil {
		return nil // it is in the log, or the directory is new
	}
	theirs, err := parseFormat(key, last)
	if err != nil {
		return err
	}
	return theirs.readable(kubernetes)
}

// DatabaseSize returns the size of the database file in a directory; 0 if there is none.
func DatabaseSize(dir string) int64 {
	info, err := os.Stat(DatabaseFile(dir))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Client returns a client of an external etcd, for diagnosis. The caller closes it.
func (c Config) Client(ctx context.Context) (*clientv3.Client, error) {
	secure, err := c.security()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: c.Servers, TLS: secure, Username: c.Username, Password: c.Password, DialTimeout: connectTimeout / 2, Context: ctx, Logger: zap.NewNop()})
}
