package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/raft/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Damaged files make etcd panic or exit, in any of its goroutines. The checks here report the
// damaged directory and a remedy instead.

// lockTimeout is the maximum wait while another process has the database open.
const lockTimeout = time.Second

// checkFiles checks the files of a member before etcd reads them.
func checkFiles(dir string) error {
	db := databaseOf(dir)
	if logs, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal")); err != nil || len(logs) == 0 {
		if _, err := os.Stat(db); err == nil {
			return fmt.Errorf("%s exists without a write-ahead log", db)
		}
	}
	return checkFile(db)
}

// checkFile reads the whole database file. A damaged page would make etcd panic in a goroutine
// of its own, where this process cannot recover. etcd reads the same pages right after.
func checkFile(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // etcd creates it from its log, or returns an error
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a truncated file lacks pages
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

// A fatalHook receives the error at which etcd would end the process.
type fatalHook struct {
	started atomic.Bool
	reached chan error
}

func newFatalHook() *fatalHook { return &fatalHook{reached: make(chan error, 1)} }

// logger returns a logger for etcd that only calls h.
func (h *fatalHook) logger() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithPanicHook(h), zap.WithFatalHook(h))
}

// compactedEarly is a message at which raft would panic although nothing is wrong. Before a member
// campaigns, raft looks for changes of the membership among the entries that it has not yet marked as
// applied. etcd has compacted these if it applied more than catchUpEntries at the start and raft was to
// campaign just before it marked them. A member that is alone has no other change of the membership
// than the first, and may campaign.
// At the next minor version: see hasUnappliedConfChanges in raft, and compactRaftLog in etcdserver.
var compactedEarly = regexp.MustCompile(`^error scanning unapplied entries .*: ` + regexp.QuoteMeta(raft.ErrCompacted.Error()) + `$`)

// OnWrite implements [zapcore.CheckWriteHook] for log messages of etcd at the levels panic and
// fatal. During the start, the message becomes the error of the start. Later it ends the
// process, because continuing would lose writes. After compactedEarly, etcd continues.
func (h *fatalHook) OnWrite(entry *zapcore.CheckedEntry, why []zapcore.Field) {
	if compactedEarly.MatchString(entry.Message) {
		return
	}
	detail := zapcore.NewMapObjectEncoder()
	for _, f := range why {
		f.AddTo(detail)
	}
	err := errors.New(entry.Message)
	if cause, ok := detail.Fields["error"]; ok {
		err = fmt.Errorf("%s: %v", entry.Message, cause)
	}
	if h.started.Load() {
		panic(fmt.Sprintf("etcd cannot go on: %v", err))
	}
	select {
	case h.reached <- err:
	default: // the first error is kept
	}
	runtime.Goexit()
}
