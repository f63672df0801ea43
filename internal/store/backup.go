package store

import (
	"context"
	"io"

	"github.com/unforked/kcp/internal/backup"
)

// Backup writes all keys at one revision, for [backup.Reader.Restore]. version is that of kcp.
func (s *Store) Backup(ctx context.Context, version string, to io.Writer) error {
	return backup.Write(ctx, backup.Source{Backend: s.backend, Prefix: s.prefix, Version: version}, to)
}
