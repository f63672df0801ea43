package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// A first start that is cut short, by a crash or an interrupt, may leave a log
// that names no member, with which etcd never gets ready again. A mark beside
// the files tells so from then until they are complete. Nothing was acknowledged
// in that time, so the next start begins anew.

func memberDir(dir string) string { return filepath.Join(dir, "member") }

// beginFirst sets the mark if there are no files in dir yet, or the first start
// was cut short. The function that it returns takes the mark off.
func beginFirst(dir string) (finish func() error, err error) {
	mark := filepath.Join(dir, "first-start")
	if _, err := os.Stat(mark); err == nil && !holdsKeys(memberDir(dir)) {
		if err := os.RemoveAll(memberDir(dir)); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(memberDir(dir)); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(mark, nil, 0o600), syncDir(dir)); err != nil {
			return nil, fmt.Errorf("mark the first start: %w", err)
		}
	}
	return func() error {
		err := os.Remove(mark)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		// A mark that came back after a crash would be taken for one of a later start.
		return errors.Join(err, syncDir(dir))
	}, nil
}

// holdsKeys reports whether a database has any key, as a complete one has, or
// cannot be read.
func holdsKeys(member string) bool {
	path := filepath.Join(member, "snap", "db")
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

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
