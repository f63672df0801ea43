package election

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
)

// announcedSeconds is how long the announcement of a process that died or hangs lasts.
const announcedSeconds = 10

// announcements is the prefix of the keys of announcements, by topic.
func (e *Election) announcements(topic string) string {
	return e.prefix + keys.SystemKey(cluster.Admin, "leases", topic).Path() + "/"
}

// Announce announces a value under a topic to all processes on the same etcd, until ctx ends.
// It retries if etcd does not accept the value.
func (e *Election) Announce(ctx context.Context, topic, value string) {
	for ctx.Err() == nil {
		err := e.leased(ctx, announcedSeconds, func(held context.Context, lease clientv3.LeaseID) error {
			key := e.announcements(topic) + strconv.FormatInt(int64(lease), 16)
			if _, err := e.client.Put(held, key, value, clientv3.WithLease(lease)); err != nil {
				return err
			}
			<-held.Done()
			return nil
		})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("This process cannot announce itself to the others on etcd; trying again", "topic", topic, "err", err)
		}
		pause(ctx, candidateRetry)
	}
}

// Announced returns the values that processes announce under a topic.
func (e *Election) Announced(ctx context.Context, topic string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, etcd.ReadTimeout)
	defer cancel()
	read, err := e.client.Get(ctx, e.announcements(topic), clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read what the servers on this etcd announce: %w", err)
	}
	var all []string
	for _, kv := range read.Kvs {
		all = append(all, string(kv.Value))
	}
	return all, nil
}
