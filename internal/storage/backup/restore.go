package backup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/unforked/kcp/internal/storage/etcd/embedded"
)

const (
	// fastest is more writes per second than etcd can make. The restored data begins at a
	// revision that the original cannot have reached since the backup, nor another copy that
	// was restored before. So resource versions never go back, and no client takes the one
	// for the other.
	fastest = 100_000
	// margin covers clocks that differ.
	margin = 600 * fastest
)

// A Target is where to restore a backup.
type Target struct {
	// Dir is the data directory of an etcd in a kcp process. It must not exist, or be empty.
	Dir string
	// Snapshot is a file for the snapshot command of etcd, instead of Dir.
	Snapshot string
	// Prefix is the prefix of the restored keys. The default is that of the backup.
	Prefix string
	// Without reports whether a key below the prefix is left out; nil leaves out none.
	Without func(key string) bool
	// Progress is called with the number of keys read so far; nil is allowed.
	Progress func(keys int64)
}

// Check reads a backup and checks that it is complete.
func (r *Reader) Check(progress func(keys int64)) error { return r.Read(nowhere{}, progress) }

type nowhere struct{}

func (nowhere) Put(*mvccpb.KeyValue) error { return nil }
func (nowhere) Lease(_, _ int64)           {}

// Restore restores the backup. It returns the first revision of the restored data. If it
// returns an error, the target is unchanged.
func (r *Reader) Restore(ctx context.Context, t Target) (revision int64, err error) {
	if err := t.free(); err != nil {
		return 0, err
	}
	beside := filepath.Dir(filepath.Clean(t.Dir))
	if t.Snapshot != "" {
		beside = filepath.Dir(filepath.Clean(t.Snapshot))
	}
	if err := os.MkdirAll(beside, 0o700); err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp(beside, ".restore-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	revision = r.first(time.Now())
	data := filepath.Join(work, "etcd-server")
	err = embedded.Create(ctx, data, revision, func(c *embedded.Content) error {
		return r.Read(&moved{Content: c, interrupted: ctx.Err, from: r.Header.Prefix, to: t.Prefix, without: t.Without}, t.Progress)
	})
	switch {
	case err != nil:
		return 0, err
	case t.Snapshot != "":
		return revision, snapshot(embedded.DatabaseFile(data), t.Snapshot)
	}
	_ = os.Remove(t.Dir) // an empty one
	return revision, errors.Join(os.Rename(data, t.Dir), embedded.SyncDir(beside))
}

// free returns an error if the target has data.
func (t Target) free() error {
	if t.Snapshot != "" {
		if _, err := os.Lstat(t.Snapshot); err == nil {
			return fmt.Errorf("%s exists; choose another file", t.Snapshot)
		}
		return nil
	}
	entries, err := os.ReadDir(t.Dir)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s has data; move it away, or choose another directory", t.Dir)
}

// first returns the revision at which the restored data begins.
func (r *Reader) first(now time.Time) int64 {
	return r.Header.Revision + margin + fastest*int64(max(0, now.Sub(r.Header.Time)/time.Second))
}

// moved puts the keys below another prefix.
type moved struct {
	*embedded.Content
	interrupted func() error
	from, to    string
	without     func(key string) bool
}

// Put implements [Sink].
func (m *moved) Put(kv *mvccpb.KeyValue) error {
	if err := m.interrupted(); err != nil {
		return err
	}
	key, ok := strings.CutPrefix(string(kv.Key), m.from+"/")
	if !ok {
		return fmt.Errorf("key %q is not below %s", kv.Key, m.from)
	}
	if m.without != nil && m.without("/"+key) {
		return nil
	}
	if m.to != "" {
		kv.Key = []byte(m.to + "/" + key)
	}
	return m.Content.Put(kv)
}

// snapshot writes the database file as etcd writes snapshots: followed by its SHA-256.
func snapshot(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	if err == nil {
		_, err = out.Write(sum.Sum(nil))
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}
