package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"k8s.io/klog/v2"
)

const (
	// roomBelow of the quota, in percent, what is in use must be for it to be worth making
	// the file of the database smaller.
	roomBelow = 95
	roomEvery = time.Second
)

// room is the file of the database of an etcd in this process. It never gets smaller by
// itself: once it has grown to the quota, as large values in the gaps between others can
// make it, etcd takes no writes but deletions, also when most of it is empty again.
type room struct {
	server *etcdserver.EtcdServer
	*capacity
}

// keep makes room whenever the file has grown to the quota, until ctx ends.
func (r *room) keep(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		tick := time.NewTicker(roomEvery)
		defer tick.Stop()
		var wait time.Time // after an attempt that failed
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				if now.Before(wait) {
					continue
				}
				if err := r.make(ctx); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "The database has grown to its quota, and could not be made smaller")
					wait = now.Add(lookEvery)
				}
			}
		}
	})
}

// alarmed reports whether etcd takes no writes for want of space.
func (r *room) alarmed() bool {
	for _, a := range r.server.Alarms() {
		if a.Alarm == pb.AlarmType_NOSPACE {
			return true
		}
	}
	return false
}

// make has etcd write its file anew, without gaps, and go on taking writes. It does nothing
// as long as it takes them, nor while there are hardly any gaps: history is compacted, and
// tenants delete, until there are.
func (r *room) make(ctx context.Context) error {
	alarmed := r.alarmed()
	r.full.Store(alarmed)
	if !alarmed || r.above(roomBelow) {
		return nil
	}
	return r.defragment(ctx)
}

func (r *room) defragment(ctx context.Context) error {
	before, began := r.server.Backend().Size(), time.Now()
	if err := r.server.Defragment(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	if r.above(roomBelow) {
		return nil
	}
	_, err := r.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: uint64(r.server.MemberID()), Alarm: pb.AlarmType_NOSPACE})
	if err != nil {
		return fmt.Errorf("disarm the alarm: %w", err)
	}
	r.full.Store(false)
	klog.FromContext(ctx).Info("The file of the database had grown to its quota, and was written anew", "bytes", r.server.Backend().Size(), "before", before, "took", time.Since(began))
	return nil
}

// makeFirst makes room before anything else is done: what has to be written at the start
// could not be. There is nobody yet who watches, so that all history can go.
func (r *room) makeFirst(ctx context.Context, client *clientv3.Client) error {
	if !r.alarmed() {
		return nil
	}
	r.full.Store(true)
	if r.above(roomBelow) {
		newest, err := client.Get(ctx, "\x00", clientv3.WithSerializable())
		if err == nil {
			_, err = client.Compact(ctx, newest.Header.Revision, clientv3.WithCompactPhysical())
		}
		if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("compact history: %w", err)
		}
	}
	return r.defragment(ctx)
}
