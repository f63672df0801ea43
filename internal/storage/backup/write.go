package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcd"
)

const (
	// pageBytes is the wanted size of a page that is read from etcd, which is in memory.
	pageBytes = 4 << 20
	// shortLease is the time that keys have whose lease ends while the backup is made.
	shortLease = 60
)

// A Source is what to back up.
type Source struct {
	Backend *etcd.Backend
	// Prefix is the prefix of the keys, without a slash at the end.
	Prefix string
	// Version is the version of this program.
	Version string
}

// Write writes a backup of one revision. Other requests go on meanwhile.
func Write(ctx context.Context, s Source, to io.Writer) error {
	defer s.Backend.Hold()()
	client, first := s.Backend.Client, s.Prefix+"/"
	begun := time.Now()
	count, err := client.Get(ctx, first, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	header := Header{Format: format, Version: s.Version, Time: begun.UTC(), Revision: count.Header.Revision, Prefix: s.Prefix, Keys: count.Count}
	w, err := newWriter(to, header)
	if err != nil {
		return err
	}
	leases := map[int64]bool{}
	err = s.pages(ctx, header.Revision, func(kv *mvccpb.KeyValue) error {
		if kv.Lease != 0 {
			leases[kv.Lease] = true
		}
		return w.key(kv)
	})
	if errors.Is(err, rpctypes.ErrCompacted) {
		err = fmt.Errorf("etcd has removed revision %d, %s after the backup began: make backups faster, or set a longer --etcd-compaction-interval", header.Revision, time.Since(begun).Round(time.Second))
	}
	for id := range leases {
		if err != nil {
			break
		}
		err = w.lease(lease{ID: id, Seconds: remaining(ctx, client, id)})
	}
	return w.finish(err)
}

// remaining returns how many seconds a lease has.
func remaining(ctx context.Context, client *clientv3.Client, id int64) int64 {
	is, err := client.TimeToLive(ctx, clientv3.LeaseID(id))
	if err != nil || is.TTL < shortLease {
		return shortLease
	}
	return is.TTL
}

// pages calls each for all keys at a revision.
func (s Source) pages(ctx context.Context, revision int64, each func(*mvccpb.KeyValue) error) error {
	for pages := etcd.NewPager(s.Backend.Client, s.Prefix+"/", pageBytes); pages.More(); {
		page, err := pages.Next(ctx, clientv3.WithRev(revision))
		if err != nil {
			return err
		}
		for _, kv := range page.Kvs {
			if err := each(kv); err != nil {
				return err
			}
		}
	}
	return nil
}
