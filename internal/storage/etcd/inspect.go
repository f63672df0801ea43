package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcd/embedded"
)

// Inspect checks the files of an etcd that no process uses, in the directory dir. It returns an
// error if they are damaged, or if a program for a Kubernetes minor version cannot read the
// data that the key describes.
func Inspect(dir, key, kubernetes string) error {
	last, err := embedded.ReadStopped(dir, key)
	if err != nil || last == nil {
		return err
	}
	theirs, err := parseFormat(key, last)
	if err != nil {
		return err
	}
	return theirs.readable(kubernetes)
}

// Client returns a client of an external etcd, for diagnosis. The caller closes it.
func (c Config) Client(ctx context.Context) (*clientv3.Client, error) {
	return c.external().Client(ctx)
}
