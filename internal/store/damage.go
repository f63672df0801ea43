package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/zap/zapcore"
)

// What etcd meets in damaged files ends the process: it panics, or exits, from
// whatever goroutine it is in. An operator must hear instead which directory is
// damaged, and what to do.

// lockTimeout bounds the wait for another process that has a database open.
const lockTimeout = time.Second

// checkFiles looks at the files of a member before etcd does.
func checkFiles(dir string) error {
	db := filepath.Join(dir, "snap", "db")
	if logs, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal")); err != nil || len(logs) == 0 {
		if _, err := os.Stat(db); err == nil {
			return fmt.Errorf("%s has no log beside it", db)
		}
	}
	return checkFile(db)
}

// checkFile reads the structure of a database file, in which a damaged page makes
// etcd panic where nobody can recover. What it reads etcd reads right after.
func checkFile(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // etcd makes it anew from its log, or says that it cannot
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // pages that a short file does not have
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s is damaged: %v", path, r)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: lockTimeout})
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	return errors.Join(err, db.Close())
}

// A verdict is etcd's decision to end the process, taken while it starts.
type verdict struct {
	started atomic.Bool
	reached chan error
}

func newVerdict() *verdict { return &verdict{reached: make(chan error, 1)} }

// OnWrite implements [zapcore.CheckWriteHook] for messages after which etcd cannot
// go on. While it starts, that is an error of the start; later it ends the
// process, as going on would lose writes.
func (v *verdict) OnWrite(entry *zapcore.CheckedEntry, why []zapcore.Field) {
	detail := zapcore.NewMapObjectEncoder()
	for _, f := range why {
		f.AddTo(detail)
	}
	err := errors.New(entry.Message)
	if cause, ok := detail.Fields["error"]; ok {
		err = fmt.Errorf("%s: %v", entry.Message, cause)
	}
	if v.started.Load() {
		panic(fmt.Sprintf("etcd cannot go on: %v", err))
	}
	select {
	case v.reached <- err:
	default: // the first says it
	}
	runtime.Goexit()
}
