package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

const (
	flushBytes = 16 << 20       // written to the database in one transaction of its file
	never      = 24 * time.Hour // the file is flushed by bytes instead
)

// DatabaseFile returns the database file of the etcd in dir.
func DatabaseFile(dir string) string { return databaseOf(memberDir(dir)) }

// Create creates the data of an etcd in this process in the directory dir, which must not exist
// or be empty. fill adds the keys. The first revision after them is above revision, and
// earlier ones count as compacted. So watches and lists at earlier revisions end with an error.
func Create(ctx context.Context, dir string, revision int64, fill func(*Content) error) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", dir)
	}
	fatal := newFatalHook()
	cfg := Config{Dir: dir}.etcd(true, fatal)
	empty, err := start(ctx, cfg, fatal)
	if err != nil {
		return err
	}
	empty.Close()
	failed := newFatalHook() // such as a full disk
	file := backend.DefaultBackendConfig(failed.logger())
	file.Path, file.BatchInterval, file.BatchLimit = DatabaseFile(dir), never, 1<<30
	done := make(chan error, 1)
	go func() { // ends early if the database fails
		c := &Content{db: backend.New(file), last: revision, subs: map[int64]int64{}}
		err := fill(c)
		if err == nil {
			c.mark()
		}
		done <- errors.Join(err, c.db.Close()) // closing flushes and syncs
	}()
	select {
	case err := <-done:
		return err
	case err := <-failed.reached: // the database stays open: closing would fail again
		return fmt.Errorf("%s: %w", file.Path, err)
	}
}

// Content is the content of a database that [Create] writes.
type Content struct {
	db      backend.Backend
	last    int64
	pending int
	// subs counts the keys of each revision: in the file, each key has its own place in the
	// transaction.
	subs map[int64]int64
}

// Put adds a key with its value, revisions, version and lease.
func (c *Content) Put(kv *mvccpb.KeyValue) error {
	if kv.ModRevision <= 0 || kv.CreateRevision <= 0 || kv.CreateRevision > kv.ModRevision || kv.ModRevision > c.last || len(kv.Key) == 0 {
		return fmt.Errorf("key %q with the revisions %d and %d cannot be stored at revision %d", kv.Key, kv.CreateRevision, kv.ModRevision, c.last)
	}
	value, err := kv.Marshal()
	if err != nil {
		return err
	}
	sub := c.subs[kv.ModRevision]
	c.subs[kv.ModRevision]++
	at := mvcc.RevToBytes(mvcc.Revision{Main: kv.ModRevision, Sub: sub}, mvcc.NewRevBytes())
	tx := c.db.BatchTx()
	tx.LockOutsideApply()
	tx.UnsafePut(schema.Key, at, value)
	tx.Unlock()
	if c.pending += len(value); c.pending > flushBytes {
		c.pending = 0
		c.db.ForceCommit()
	}
	return nil
}

// Lease adds a lease, with its remaining seconds.
func (c *Content) Lease(id, seconds int64) {
	tx := c.db.BatchTx()
	tx.LockOutsideApply()
	defer tx.Unlock()
	schema.MustUnsafePutLease(tx, &leasepb.Lease{ID: id, TTL: seconds})
}

// mark sets the current revision: it counts as the revision of a finished compaction.
func (c *Content) mark() {
	tx := c.db.BatchTx()
	mvcc.SetScheduledCompact(tx, c.last)
	tx.LockOutsideApply()
	defer tx.Unlock()
	mvcc.UnsafeSetFinishedCompact(tx, c.last)
}
