package etcd

import (
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// A start reads all log entries since the last snapshot into memory. Each entry can be as
// large as a request, so there must be few.
func TestStartReadsFewEntries(t *testing.T) {
	dir := t.TempDir()
	b, err := Open(t.Context(), Config{}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 1300 {
		if _, err := b.Client.Put(t.Context(), "/elsewhere", strings.Repeat("x", 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()

	member := memberDir(filepath.Join(dir, "etcd-server"))
	last, err := snap.New(zap.NewNop(), filepath.Join(member, "snap")).Load()
	if err != nil {
		t.Fatal(err)
	}
	w, err := wal.OpenForRead(zap.NewNop(), filepath.Join(member, "wal"), walpb.Snapshot{Index: last.Metadata.Index, Term: last.Metadata.Term})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	_, _, entries, err := w.ReadAll()
	if most := 1005; err != nil || len(entries) > most {
		t.Errorf("a start reads %d entries, want at most %d; %v", len(entries), most, err)
	}
}
