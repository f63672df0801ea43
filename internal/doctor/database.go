package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/embedded"
	"github.com/unforked/kcp/internal/storage/etcd/external"
)

const (
	answerTimeout = 5 * time.Second
	slowAnswer    = 50 * time.Millisecond
	fullPercent   = 80 // creates in workspaces are refused above it
)

// database checks the data.
func (s Server) database(ctx context.Context, r *report, running bool) {
	if s.external() {
		s.members(ctx, r)
		return
	}
	file := embedded.DatabaseFile(s.data())
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		r.ok("%s has no database yet", s.data())
		return
	}
	if running {
		r.ok("the database has %d MiB; its content is checked only while no server runs", embedded.DatabaseSize(s.data())>>20)
		return
	}
	if err := etcd.Inspect(s.data(), s.Prefix+"/s/meta", s.Kubernetes); err != nil {
		r.problem("see the message; keep the directory until a backup is restored", "%v", err)
		return
	}
	r.ok("the database has %d MiB, can be read, and is of a format that this program reads", embedded.DatabaseSize(s.data())>>20)
}

// members checks the members of an external etcd.
func (s Server) members(ctx context.Context, r *report) {
	client, err := s.Etcd.Client(ctx)
	if err != nil {
		r.problem("check the flags --etcd-…", "%v", err)
		return
	}
	defer func() { _ = client.Close() }() // reports only that its context ended
	for _, server := range s.Etcd.Servers {
		member(ctx, r, client, server)
	}
	reading, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	begun := time.Now()
	got, err := client.Get(reading, s.Prefix+"/s/meta")
	took := time.Since(begun).Round(time.Microsecond)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		r.problem("grant the user of etcd the range "+s.Prefix+"/", "etcd does not let this user read: %v", err)
	case err != nil:
		r.problem("start the members of etcd until it has a quorum", "a consistent read fails: %v", err)
	case len(got.Kvs) == 0:
		r.warn("check --etcd-prefix, unless no server has started yet", "etcd has no data of kcp below %s", s.Prefix)
	case took > slowAnswer:
		r.warn("place the servers near etcd, and give etcd fast disks", "a consistent read takes %s", took)
	default:
		r.ok("a consistent read takes %s", took)
	}
	s.alarms(ctx, r, client)
}

// member checks one member.
func member(ctx context.Context, r *report, client *clientv3.Client, server string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	begun := time.Now()
	is, err := client.Status(ctx, server)
	took := time.Since(begun).Round(time.Microsecond)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		r.ok("%s answers, and shows its state only to administrators", server)
	case err != nil:
		r.problem("start it, or remove it from --etcd-servers; check the certificates", "%s does not answer: %v", server, err)
	case external.Older(is.Version, external.OldestVersion):
		r.problem("upgrade it", "%s is etcd %s; kcp needs at least %s", server, is.Version, external.OldestVersion)
	case is.DbSizeQuota > 0 && is.DbSizeInUse > is.DbSizeQuota/100*fullPercent:
		r.problem(external.WhenFull, "%s is %d%% full: %d of %d MiB", server, is.DbSizeInUse*100/is.DbSizeQuota, is.DbSizeInUse>>20, is.DbSizeQuota>>20)
	case is.DbSize > 2*is.DbSizeInUse && is.DbSize > 256<<20:
		r.warn("run etcdctl defrag --endpoints="+server+" at a quiet time", "the file of %s has %d MiB, of which %d are used", server, is.DbSize>>20, is.DbSizeInUse>>20)
	default:
		r.ok("%s is etcd %s, uses %d MiB of a quota of %d, and answers in %s", server, is.Version, is.DbSizeInUse>>20, is.DbSizeQuota>>20, took)
	}
}

// alarms reports the alarms of etcd.
func (s Server) alarms(ctx context.Context, r *report, client *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	list, err := client.AlarmList(ctx)
	if err != nil {
		return // only administrators may, or etcd does not answer, which is reported
	}
	for _, a := range list.Alarms {
		if a.Alarm == pb.AlarmType_NOSPACE {
			r.problem(external.WhenFull, "member %x has the alarm NOSPACE: etcd accepts only reads and deletions", a.MemberID)
			continue
		}
		r.problem("replace the member: remove it, delete its data, and add it again", "member %x has the alarm %s", a.MemberID, strings.ToUpper(a.Alarm.String()))
	}
}
