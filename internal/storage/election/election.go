package election

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/external"
	"github.com/unforked/kcp/internal/storage/keys"
)

const (
	// leaseSeconds is how long the candidacy of a process that died or hangs lasts. etcd looks
	// for expired leases twice a second, and its leader extends all of them when it is elected.
	// So another process runs the loops within five seconds.
	leaseSeconds   = 3
	candidateRetry = time.Second // after a request that failed
)

// ErrNotLeading refuses a write of a loop whose process no longer runs the loops.
var ErrNotLeading = errors.New("another process runs the loops by now")

// A Term is the candidacy with which a process runs the loops: a key that etcd deletes when
// its lease expires. As no older candidate can appear, the process runs the loops for as long
// as the key exists.
type Term struct {
	key     string
	created int64 // revision of the key
}

type termKey struct{}

// An Election is the election among the processes that use the same etcd with the same prefix.
type Election struct {
	client *clientv3.Client
	prefix string // of all keys
	alone  bool   // no other process can write to etcd
}

// New returns the election of this process. alone is set if no other process can write to etcd.
func New(client *clientv3.Client, prefix string, alone bool) *Election {
	return &Election{client: client, prefix: prefix, alone: alone}
}

// candidates is the prefix of the keys of all candidates, in the order in which they wait.
func (e *Election) candidates() string {
	return e.prefix + keys.SystemKey(cluster.Admin, "leases", "loops").Path() + "/"
}

// Lead calls run while this process runs the loops, any number of times, one after the other.
// It returns when ctx has ended and run has returned. Writes in the context of run compare the
// candidacy of the process in the same transaction. So a process that hung while another took
// over cannot write when it continues.
//
// If no other process can write to etcd, Lead calls run at once, and writes compare nothing.
func (e *Election) Lead(ctx context.Context, run func(context.Context)) {
	if e.alone {
		run(ctx)
		return
	}
	last := ""
	for ctx.Err() == nil {
		err := e.leadOnce(ctx, run)
		if err == nil || ctx.Err() != nil {
			last = ""
			continue
		}
		if last != err.Error() { // once, as it is tried every second
			last = err.Error()
			klog.FromContext(ctx).Error(err, "This process cannot be a candidate for the loops; trying again every second")
		}
		pause(ctx, candidateRetry)
	}
}

// notGranted explains why etcd grants no lease.
func notGranted(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("etcd is full and grants no lease for the loops: %w. Deletions of workspaces, garbage collection and other loops run only at servers that were candidates before. %s", err, external.WhenFull)
	}
	return fmt.Errorf("lease for the loops: %w", err)
}

// leadOnce makes this process a candidate, waits for its turn, and calls run until the lease
// is lost. Only the candidacy is a write: a process that has it takes over even while etcd
// refuses writes for lack of space.
func (e *Election) leadOnce(ctx context.Context, run func(context.Context)) error {
	granted := false
	err := e.leased(ctx, leaseSeconds, func(held context.Context, lease clientv3.LeaseID) error {
		granted = true
		return e.leadWith(held, lease, run)
	})
	if err != nil && !granted {
		return notGranted(err)
	}
	return err
}

// leased calls f with a lease, in a context that ends when the lease is lost.
func (e *Election) leased(ctx context.Context, seconds int64, f func(held context.Context, lease clientv3.LeaseID) error) error {
	client := e.client
	granting, cancel := context.WithTimeout(ctx, etcd.RequestTimeout)
	defer cancel()
	lease, err := client.Grant(granting, seconds)
	if err != nil {
		return err
	}
	defer func() { // so that others need not wait until it expires
		revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcd.ReadTimeout)
		defer cancel()
		_, _ = client.Revoke(revoking, lease.ID) // or else it expires
	}()
	held, end := context.WithCancel(ctx)
	alive, err := client.KeepAlive(held, lease.ID)
	if err != nil {
		end()
		return err
	}
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer end()
	keeping.Go(func() {
		defer end()
		for range alive { // closed when the lease is lost, or held ends
		}
	})
	return f(held, lease.ID)
}

// leadWith is the part of leadOnce that needs the lease.
func (e *Election) leadWith(held context.Context, lease clientv3.LeaseID, run func(context.Context)) error {
	host, _ := os.Hostname() // for people who look
	own := Term{key: e.candidates() + strconv.FormatInt(int64(lease), 16)}
	resp, err := e.client.Put(held, own.key, fmt.Sprintf("%s/%d", host, os.Getpid()), clientv3.WithLease(lease))
	if err != nil {
		return fmt.Errorf("candidate for the loops: %w", err)
	}
	own.created = resp.Header.Revision
	if !e.awaitTurn(held, own) {
		return nil
	}
	klog.FromContext(held).Info("This process runs the loops")
	run(context.WithValue(held, termKey{}, own))
	return nil
}

// awaitTurn waits until no older candidate is left. It reports whether that is before ctx ends.
func (e *Election) awaitTurn(ctx context.Context, own Term) bool {
	for ctx.Err() == nil {
		first, err := e.awaitOlder(ctx, own)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(4).Info("Cannot wait for an older candidate for the loops; trying again", "error", err)
			pause(ctx, candidateRetry)
		} else if first {
			return true
		}
	}
	return false
}

// awaitOlder reports whether no candidate is older than own. If one is, it waits until etcd
// deletes the youngest of them.
func (e *Election) awaitOlder(ctx context.Context, own Term) (first bool, err error) {
	client := e.client
	older, err := client.Get(ctx, e.candidates(), append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(own.created-1))...)
	if err != nil || len(older.Kvs) == 0 {
		return err == nil, err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range client.Watch(clientv3.WithRequireLeader(watching), string(older.Kvs[0].Key), clientv3.WithRev(older.Header.Revision+1)) {
		if err := resp.Err(); err != nil {
			return false, err
		}
		for _, change := range resp.Events {
			if change.Type == clientv3.EventTypeDelete {
				return false, nil
			}
		}
	}
	return false, errors.New("the watch ended")
}

// pause waits until d has passed or ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// WithTermOf returns ctx with the term of the other context, if that is of a loop: writes in
// it compare the candidacy, too.
func WithTermOf(ctx, of context.Context) context.Context {
	if term := of.Value(termKey{}); term != nil {
		return context.WithValue(ctx, termKey{}, term)
	}
	return ctx
}

// TermOf returns the term of the loop of ctx, which every transaction of the loop compares. For
// others it is zero, and adds nothing to a transaction.
func TermOf(ctx context.Context) Term {
	t, _ := ctx.Value(termKey{}).(Term)
	return t
}

// Compares returns the compares of the transaction.
func (t Term) Compares(own ...clientv3.Cmp) []clientv3.Cmp {
	if t.key == "" {
		return own
	}
	return append(slices.Clip(own), clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.created))
}

// Reads returns what the transaction reads if a compare fails.
func (t Term) Reads(own ...clientv3.Op) []clientv3.Op {
	if t.key == "" {
		return own
	}
	return append(slices.Clip(own), clientv3.OpGet(t.key))
}

// Lost removes what Reads added from the response of a failed transaction. It returns
// [ErrNotLeading] if the process no longer runs the loops.
func (t Term) Lost(resp *clientv3.TxnResponse) error {
	if t.key == "" {
		return nil
	}
	last := len(resp.Responses) - 1
	kvs := resp.Responses[last].GetResponseRange().GetKvs()
	resp.Responses = resp.Responses[:last]
	if len(kvs) == 0 || kvs[0].CreateRevision != t.created {
		return ErrNotLeading
	}
	return nil
}
