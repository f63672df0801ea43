package external

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd/history"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// A quota measures the database of an external etcd.
type quota struct {
	*space.Capacity
	client *clientv3.Client
	inUse  atomic.Int64
	// pressed receives a value when history should be kept for a shorter time.
	pressed chan struct{}
}

func newQuota(client *clientv3.Client) *quota {
	q := &quota{client: client, pressed: make(chan struct{}, 1)}
	q.Capacity = space.New(q.inUse.Load, 0)
	return q
}

// run measures until ctx ends.
func (q *quota) run(ctx context.Context) { wait.UntilWithContext(ctx, q.measure, space.MeasureEvery) }

// logAlarm logs that the alarm for lack of space was raised or disarmed.
func logAlarm(ctx context.Context, full bool, inUse, quota int64) {
	log := klog.FromContext(ctx).WithValues("bytesInUse", inUse, "quota", quota)
	if !full {
		log.Info("etcd has space again")
		return
	}
	log.Error(nil, "etcd is full: it accepts only reads and deletions. "+WhenFull)
}

// WhenFull says what to do about the alarm of an external etcd.
const WhenFull = "Delete objects, or raise --quota-backend-bytes of etcd; wait for a compaction; then run kcp defragment, or etcdctl defrag --cluster and etcdctl alarm disarm. No server needs a restart"

// measure asks every server, because each has its own database file. The fullest one counts.
func (q *quota) measure(ctx context.Context) {
	var inUse, quota int64
	full, answered := false, false
	for _, server := range q.client.Endpoints() {
		each, done := context.WithTimeout(ctx, keepAliveTimeout)
		is, err := q.client.Status(each, server)
		done()
		if err != nil {
			continue // other servers answer; if none does, the last measurement stays
		}
		answered = true
		inUse = max(inUse, is.DbSizeInUse)
		if is.DbSizeQuota > 0 && (quota == 0 || is.DbSizeQuota < quota) {
			quota = is.DbSizeQuota
		}
		full = full || slices.ContainsFunc(is.Errors, func(e string) bool { return strings.Contains(e, pb.AlarmType_NOSPACE.String()) })
	}
	if !answered {
		return
	}
	q.inUse.Store(inUse)
	q.SetQuota(quota)
	if q.SetFull(full) {
		logAlarm(ctx, full, inUse, quota)
	}
	q.Publish()
	if full || q.Above(history.PressedAt) {
		select {
		case q.pressed <- struct{}{}:
		default:
		}
	}
}
