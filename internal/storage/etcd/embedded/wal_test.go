package embedded

import (
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// A start reads all log entries since the last snapshot into memory. Each entry can be as
// large as a request, so there must be few.
func TestStartReadsFewEntries(t *testing.T) {
	dir := t.TempDir()
	b, err := Start(t.Context(), Config{Dir: dir}, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 1300 {
		if _, err := b.Client.Put(t.Context(), "/elsewhere", strings.Repeat("x", 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()

	member := memberDir(dir)
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

// TestCampaignAfterAnEarlyCompaction expects that a member elects itself although etcd has compacted
// entries that raft has not marked as applied. That happens at the start of a member on a busy machine.
func TestCampaignAfterAnEarlyCompaction(t *testing.T) {
	const self, entries = 1, 110
	fatal := newFatalHook()
	log := raft.NewMemoryStorage()
	var all []raftpb.Entry
	for i := range uint64(entries) {
		all = append(all, raftpb.Entry{Index: i + 2, Term: 1})
	}
	if err := log.ApplySnapshot(raftpb.Snapshot{Metadata: raftpb.SnapshotMetadata{Index: 1, Term: 1, ConfState: raftpb.ConfState{Voters: []uint64{self}}}}); err != nil {
		t.Fatal(err)
	}
	if err := log.Append(all); err != nil {
		t.Fatal(err)
	}
	if err := log.SetHardState(raftpb.HardState{Term: 1, Commit: entries + 1}); err != nil {
		t.Fatal(err)
	}
	member, err := raft.NewRawNode(&raft.Config{
		ID: self, ElectionTick: 10, HeartbeatTick: 1, Storage: log, MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 1, Logger: etcdserver.NewRaftLoggerZap(fatal.logger()),
	})
	if err != nil {
		t.Fatal(err)
	}
	ready := member.Ready()
	if n := len(ready.CommittedEntries); n != entries {
		t.Fatalf("%d entries are to be applied", n)
	}
	if err := log.Compact(entries - catchUpEntries); err != nil {
		t.Fatal(err)
	}
	if err := member.Campaign(); err != nil {
		t.Fatal(err)
	}
	if err := log.Append(ready.Entries); err != nil {
		t.Fatal(err)
	}
	member.Advance(ready)
	for member.HasReady() {
		next := member.Ready()
		if err := log.Append(next.Entries); err != nil {
			t.Fatal(err)
		}
		member.Advance(next)
	}
	if s := member.BasicStatus(); s.RaftState != raft.StateLeader || s.Applied != entries+2 {
		t.Errorf("the member is %s and has applied %d entries", s.RaftState, s.Applied)
	}
	select {
	case err := <-fatal.reached:
		t.Error(err)
	default:
	}
}
