package store

import (
	"context"
	"io"

	"k8s.io/component-base/metrics"

	"github.com/unforked/kcp/internal/storage/backup"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// Backup writes all keys at one revision, for [backup.Reader.Restore]. version is that of kcp.
func (s *Store) Backup(ctx context.Context, version string, to io.Writer) error {
	return backup.Write(ctx, backup.Source{Backend: s.backend, Prefix: s.prefix, Version: version}, to)
}

// PublishMetrics registers the metrics of the database. register is the method of that name of a
// Kubernetes registry, or legacyregistry.Register.
func (s *Store) PublishMetrics(register func(metrics.Registerable) error) error {
	return s.backend.Capacity.PublishMetrics(register)
}

// Defragment defragments the database, or every member of an external etcd.
func (s *Store) Defragment(ctx context.Context) ([]space.Defragmented, error) {
	return s.backend.Defragment(ctx)
}
