package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
)

const (
	sweepPage = 200 // objects of a page
	inFlight  = 16  // transactions of a Purge
	purgeOps  = 32  // objects of one transaction, each of a different resource
)

// Remains returns the resources of which a cluster may store objects, also those that this
// process does not serve. The cluster must be [Terminating]: no process can create anything
// in it, so no resource is added later.
func (s *Store) Remains(ctx context.Context, c cluster.Name) ([]keys.Resource, error) {
	f, err := s.guard.readFence(ctx, c)
	if err != nil {
		return nil, err
	}
	if f.state != Terminating {
		return nil, fmt.Errorf("logical cluster %s is %q and not %q: %w", c, f.state, Terminating, ErrChanged)
	}
	// The ledger counts all keys of all processes. After the fence the counts only
	// decrease.
	if err := s.feed.WaitFor(ctx, f.rev); err != nil {
		return nil, err
	}
	var all []keys.Resource
	for r := range s.feed.Ledger().Of(c) {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b keys.Resource) int { return cmp.Compare(a.Prefix(), b.Prefix()) })
	return all, nil
}

// Sweep calls f with pages of the objects of a resource that a cluster has in etcd.
func (s *Store) Sweep(ctx context.Context, c cluster.Name, r keys.Resource, f func([]Item) error) error {
	for pages := etcd.NewPager(s.backend.Client, s.rangeOf(r, c), 0); pages.More(); {
		resp, err := pages.Next(ctx, clientv3.WithLimit(sweepPage))
		if err != nil {
			return err
		}
		page := make([]Item, 0, len(resp.Kvs))
		for _, kv := range resp.Kvs {
			k, ok := keys.Parse(string(kv.Key)[len(s.prefix):])
			if !ok {
				return fmt.Errorf("malformed key %q", kv.Key)
			}
			page = append(page, s.item(ctx, k, kv))
		}
		if err := f(page); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) item(ctx context.Context, k keys.Key, kv *mvccpb.KeyValue) Item {
	i := Item{Key: k, Revision: kv.ModRevision, value: kv.Value, store: s}
	if k.Root != keys.System {
		i.Metadata, i.Err = s.values.Metadata(ctx, k, kv.Value)
	}
	return i
}

// Purge deletes objects of one cluster, which must be [Terminating]. It does no admission and
// ignores finalizers. Objects that have changed since the sweep stay. It returns the number
// of deleted objects.
func (s *Store) Purge(ctx context.Context, c cluster.Name, items []Item) (int, error) {
	batches := make(chan []Item)
	var mu sync.Mutex
	var deleted int
	var failed error
	var workers sync.WaitGroup
	for range min(inFlight, len(items)) {
		workers.Go(func() {
			for batch := range batches {
				n, err := s.purge(ctx, c, batch)
				mu.Lock()
				deleted += n
				if failed == nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	for _, batch := range onePerResource(items) {
		batches <- batch
	}
	close(batches)
	workers.Wait()
	return deleted, failed
}

// onePerResource returns batches with at most one object of each resource, so that a batch
// can be one transaction.
func onePerResource(items []Item) [][]Item {
	var batches [][]Item
	next := map[keys.Resource]int{}
	for _, i := range items {
		at := next[i.Resource]
		for at < len(batches) && len(batches[at]) == purgeOps {
			at++
		}
		if at == len(batches) {
			batches = append(batches, nil)
		}
		batches[at] = append(batches[at], i)
		next[i.Resource] = at + 1
	}
	return batches
}

// purge deletes a batch in one transaction. If an object has changed, it deletes the others
// one by one.
func (s *Store) purge(ctx context.Context, c cluster.Name, batch []Item) (int, error) {
	f, err := s.guard.allowed(ctx, c, false)
	if err != nil {
		return 0, err
	}
	if f.state != Terminating {
		return 0, fmt.Errorf("refusing to purge logical cluster %s, which is %s", c, f.state)
	}
	fenced, led := s.prefix+keys.Fence(c).Path(), election.TermOf(ctx)
	compares := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(fenced), "=", f.rev)}
	var ops []clientv3.Op
	var resources []keys.Resource
	for _, i := range batch {
		if i.Cluster != c {
			return 0, fmt.Errorf("refusing to purge %s with logical cluster %s", i.Key, c)
		}
		key := s.prefix + i.Path()
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(key), "=", i.Revision))
		ops = append(ops, clientv3.OpDelete(key))
		resources = append(resources, i.Resource)
	}
	resp, err := s.guard.kv.Txn(ctx).If(led.Compares(compares...)...).Then(ops...).Else(led.Reads(clientv3.OpGet(fenced))...).Commit()
	if err != nil {
		return 0, err
	}
	if resp.Succeeded {
		s.guard.saw(resp.Header.Revision, resources...)
		return len(batch), nil
	}
	s.guard.saw(resp.Header.Revision)
	if err := led.Lost(resp); err != nil {
		return 0, err
	}
	s.guard.read(c, resp.Responses[0].GetResponseRange(), resp.Header.Revision)
	if len(batch) == 1 {
		return 0, nil
	}
	deleted := 0
	for i := range batch {
		n, err := s.purge(ctx, c, batch[i:i+1])
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
