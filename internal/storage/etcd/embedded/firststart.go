package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// A crash or an interrupt during the first start may leave a log without a member, with which
// etcd never becomes ready. A mark file in the directory exists until the first start is
// complete. No write is acknowledged before that, so the next start deletes the files and
// starts again.

func memberDir(dir string) string { return filepath.Join(dir, "member") }

func databaseOf(member string) string { return filepath.Join(member, "snap", "db") }

// beginFirst creates the mark if dir contains no member. If the last first start was
// interrupted, it first deletes the member's files. The returned function removes the mark.
func beginFirst(dir string) (finish func() error, err error) {
	mark := filepath.Join(dir, "first-start")
	if _, err := os.Stat(mark); err == nil && !holdsKeys(memberDir(dir)) {
		if err := os.RemoveAll(memberDir(dir)); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(memberDir(dir)); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(mark, nil, 0o600), SyncDir(dir)); err != nil {
			return nil, fmt.Errorf("mark the first start: %w", err)
		}
	}
	return func() error {
		err := os.Remove(mark)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		// Otherwise the mark could reappear after a crash, and a later start could delete the
		// data.
		return errors.Join(err, SyncDir(dir))
	}, nil
}

// holdsKeys reports whether a database contains keys or cannot be read. A database in use
// contains keys.
func holdsKeys(member string) bool {
	path := databaseOf(member)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return false
	}
	if err := checkFile(path); err != nil {
		return true
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return true
	}
	holds := false
	err = db.View(func(tx *bbolt.Tx) error {
		if keys := tx.Bucket([]byte("key")); keys != nil {
			first, _ := keys.Cursor().First()
			holds = first != nil
		}
		return nil
	})
	return errors.Join(err, db.Close()) != nil || holds
}

// SyncDir makes a change of the names in a directory survive a crash of the machine.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
