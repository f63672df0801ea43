package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd/space"
)

const alarmEvery = time.Second

// A defragmenter rewrites the database file of an etcd in this process. The file never
// shrinks by itself. Once it has grown to the quota, etcd accepts only deletions, even if
// most of the file is empty. Large values let it grow, because they do not fit into gaps.
type defragmenter struct {
	server *etcdserver.EtcdServer
	*space.Disk
}

// run defragments the file whenever it has grown to the quota, until ctx ends.
func (d *defragmenter) run(ctx context.Context) {
	tick := time.NewTicker(alarmEvery)
	defer tick.Stop()
	var wait time.Time // time of the next attempt after a failure
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if now.Before(wait) {
				continue
			}
			if err := d.defragmentFull(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Defragmentation of the full database failed")
				wait = now.Add(space.MeasureEvery)
			}
		}
	}
}

// alarmed reports whether the alarm for lack of space is active.
func (d *defragmenter) alarmed() bool {
	for _, a := range d.server.Alarms() {
		if a.Alarm == pb.AlarmType_NOSPACE {
			return true
		}
	}
	return false
}

// defragmentFull defragments the file and clears the alarm if the alarm is active. It does
// nothing while the file has hardly any free pages. Compaction and deletions free some.
func (d *defragmenter) defragmentFull(ctx context.Context) error {
	alarmed := d.alarmed()
	d.SetFull(alarmed)
	if !alarmed || d.Above(space.DefragmentBelow) {
		return nil
	}
	return d.defragment(ctx)
}

func (d *defragmenter) defragment(ctx context.Context) error {
	if need := d.Used(); !d.HasSpaceFor(need) { // defragmentation writes a copy of the file
		return fmt.Errorf("defragment: the disk needs %d MiB of free space for a copy of the database; free some", need>>20)
	}
	before, began := d.server.Backend().Size(), time.Now()
	if err := d.server.Defragment(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	if d.Above(space.DefragmentBelow) {
		return nil
	}
	_, err := d.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: uint64(d.server.MemberID()), Alarm: pb.AlarmType_NOSPACE})
	if err != nil {
		return fmt.Errorf("disarm the alarm: %w", err)
	}
	d.SetFull(false)
	klog.FromContext(ctx).Info("Defragmented the database", "bytes", d.server.Backend().Size(), "before", before, "took", time.Since(began))
	return nil
}

// atStart defragments a full database before the first write. No watch is open yet, so all
// history can be compacted.
func (d *defragmenter) atStart(ctx context.Context, client *clientv3.Client) error {
	if !d.alarmed() {
		return nil
	}
	d.SetFull(true)
	if d.Above(space.DefragmentBelow) {
		newest, err := client.Get(ctx, "\x00", clientv3.WithSerializable())
		if err == nil {
			_, err = client.Compact(ctx, newest.Header.Revision, clientv3.WithCompactPhysical())
		}
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("compact history: %w", err)
		}
	}
	return d.defragment(ctx)
}

// now defragments the file of an etcd in this process.
func (d *defragmenter) now(ctx context.Context) ([]space.Defragmented, error) {
	before, began := d.server.Backend().Size(), time.Now()
	if err := d.defragment(ctx); err != nil {
		return nil, err
	}
	d.Publish()
	return []space.Defragmented{{Member: "embedded", Before: before, After: d.server.Backend().Size(), Seconds: time.Since(began).Seconds()}}, nil
}
