package external

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// defragmentTimeout is the maximum time to defragment one member of an external etcd.
const defragmentTimeout = 30 * time.Minute

// defragmentAll defragments the members of an external etcd.
func defragmentAll(ctx context.Context, client *clientv3.Client) (all []space.Defragmented, err error) {
	spacious := true
	for _, member := range client.Endpoints() {
		before, err := client.Status(ctx, member)
		if err != nil {
			return all, fmt.Errorf("the state of %s: %w; defragmenting needs a user of etcd with the role root", member, err)
		}
		began := time.Now()
		each, cancel := context.WithTimeout(ctx, defragmentTimeout)
		_, err = client.Defragment(each, member)
		cancel()
		if err != nil {
			return all, fmt.Errorf("defragment %s: %w", member, err)
		}
		after, err := client.Status(ctx, member)
		if err != nil {
			return all, fmt.Errorf("the state of %s after it was defragmented: %w", member, err)
		}
		all = append(all, space.Defragmented{Member: member, Before: before.DbSize, After: after.DbSize, Seconds: time.Since(began).Seconds()})
		spacious = spacious && (after.DbSizeQuota == 0 || after.DbSize < after.DbSizeQuota/100*space.DefragmentBelow)
	}
	if !spacious {
		return all, nil
	}
	return all, disarm(ctx, client)
}

// disarm clears the alarm for lack of space. It leaves alarms about corruption.
func disarm(ctx context.Context, client *clientv3.Client) error {
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("list the alarms of etcd: %w", err)
	}
	full := slices.DeleteFunc(alarms.Alarms, func(a *pb.AlarmMember) bool { return a.Alarm != pb.AlarmType_NOSPACE })
	for _, a := range full {
		if _, err := client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			return fmt.Errorf("disarm the alarm of member %x: %w", a.MemberID, err)
		}
	}
	return nil
}
