package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// leaseSeconds is how long the loops of a process that has died, or hangs, keep
	// others from taking over.
	leaseSeconds = 10
	campaignWait = time.Second // after an attempt that failed
)

// ErrNotLeading is why a write of a loop was refused whose process no longer leads.
var ErrNotLeading = errors.New("another process runs the loops by now")

type termKey struct{}

// leaseKey is the key whose holder runs the loops.
func (s *Store) leaseKey() string {
	return s.prefix + Key{Resource: Resource{Root: System, Resource: "leases"}, Cluster: cluster.Admin, Name: "loops"}.full()
}

// Lead calls run while this process is the one that runs the loops, any number of
// times, one after the other, and returns when ctx has ended and run has returned. Every
// write in the context that run gets compares the lease, in the same transaction: a
// process that hung while another took over does no harm when it wakes up.
//
// Where nobody else writes to etcd there is nothing to agree on: run is called at once,
// and its writes compare nothing.
func (s *Store) Lead(ctx context.Context, run func(context.Context)) {
	if s.horizon == nil {
		run(ctx)
		return
	}
	for ctx.Err() == nil {
		if err := s.leadOnce(ctx, run); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The loops do not run here; trying again")
			select {
			case <-time.After(campaignWait):
			case <-ctx.Done():
			}
		}
	}
}

// leadOnce waits for the lease, and then calls run until it is lost.
func (s *Store) leadOnce(ctx context.Context, run func(context.Context)) error {
	if err := s.awaitVacancy(ctx); err != nil {
		return err
	}
	client := s.backend.client
	granting, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	lease, err := client.Grant(granting, leaseSeconds)
	if err != nil {
		return fmt.Errorf("lease for the loops: %w", err)
	}
	defer func() { // so that another takes over at once
		revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), glance)
		defer cancel()
		_, _ = client.Revoke(revoking, lease.ID) // or else it expires
	}()
	leading, end := context.WithCancel(ctx)
	defer end()
	alive, err := client.KeepAlive(leading, lease.ID)
	if err != nil {
		return fmt.Errorf("lease for the loops: %w", err)
	}
	host, _ := os.Hostname() // for people who look
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(s.leaseKey()), "=", 0)).
		Then(clientv3.OpPut(s.leaseKey(), fmt.Sprintf("%s/%d", host, os.Getpid()), clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !resp.Succeeded {
		return err
	}
	klog.FromContext(ctx).Info("This process runs the loops")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		defer end()
		for range alive { // closed when the lease is lost, or leading ends
		}
	}()
	run(context.WithValue(leading, termKey{}, resp.Header.Revision))
	end()
	<-stopped
	return nil
}

// awaitVacancy returns when nobody holds the lease.
func (s *Store) awaitVacancy(ctx context.Context) error {
	held, err := s.backend.client.Get(ctx, s.leaseKey())
	if err != nil || len(held.Kvs) == 0 {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range s.backend.client.Watch(clientv3.WithRequireLeader(watching), s.leaseKey(), clientv3.WithRev(held.Header.Revision+1)) {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, e := range resp.Events {
			if e.Type == clientv3.EventTypeDelete {
				return nil
			}
		}
	}
	return ctx.Err()
}

// WithTermOf returns ctx with the term of the loop in whose context of is, if it is one:
// what is written in it compares the lease, too.
func WithTermOf(ctx, of context.Context) context.Context {
	if term := of.Value(termKey{}); term != nil {
		return context.WithValue(ctx, termKey{}, term)
	}
	return ctx
}

// A led transaction is one of a loop that compares the lease, or one of anybody else,
// to which nothing is added.
type led struct {
	term int64
	key  string
}

// led returns what a transaction in ctx adds to itself.
func (g *guard) led(ctx context.Context) led {
	term, _ := ctx.Value(termKey{}).(int64)
	return led{term, g.lease}
}

// compares returns the compares of the transaction.
func (l led) compares(own ...clientv3.Cmp) []clientv3.Cmp {
	if l.term == 0 {
		return own
	}
	return append(slices.Clip(own), clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.term))
}

// reads returns what the transaction reads if a compare fails.
func (l led) reads(own ...clientv3.Op) []clientv3.Op {
	if l.term == 0 {
		return own
	}
	return append(slices.Clip(own), clientv3.OpGet(l.key))
}

// lost takes what reads added from the response of a transaction that failed, and tells
// whether it did because the loop no longer leads.
func (l led) lost(resp *clientv3.TxnResponse) error {
	if l.term == 0 {
		return nil
	}
	last := len(resp.Responses) - 1
	kv := first(resp.Responses[last].GetResponseRange())
	resp.Responses = resp.Responses[:last]
	if kv == nil || kv.CreateRevision != l.term {
		return ErrNotLeading
	}
	return nil
}
