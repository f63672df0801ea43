package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	sweepPage = 200 // objects of a page
	inFlight  = 16  // transactions of a Purge
	purgeOps  = 32  // objects of one transaction, each of a different resource
)

// An Item is a stored object of a cluster that is being deleted.
type Item struct {
	keys.Key
	Revision int64
	// Metadata is empty if the value cannot be read; then Err is the reason.
	// [values.IsCorrupt] tells whether the value can ever be read.
	Metadata values.Metadata
	Err      error
	value    []byte
	store    *Store
}

// Object decodes the object in its storage version.
func (i Item) Object(ctx context.Context) (runtime.Object, error) {
	return i.store.values.Decode(ctx, i.Key, i.value)
}

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

// Bare returns the item without its value, to keep for a Purge.
func (i Item) Bare() Item { return Item{Key: i.Key, Revision: i.Revision} }

// APIVersion returns the group and version in which the object is stored.
func (i Item) APIVersion(ctx context.Context) (schema.GroupVersion, error) {
	return i.store.values.APIVersion(ctx, i.Key, i.value)
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

// Count returns the number of objects of some resources that a cluster has in etcd.
func (s *Store) Count(ctx context.Context, c cluster.Name, resources ...keys.Resource) (int64, error) {
	var sum int64
	for some := range slices.Chunk(resources, etcd.MaxTxnOps) {
		ops := make([]clientv3.Op, len(some))
		for i, r := range some {
			ops[i] = clientv3.OpGet(s.rangeOf(r, c), clientv3.WithPrefix(), clientv3.WithCountOnly())
		}
		resp, err := s.guard.kv.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return 0, err
		}
		for _, r := range resp.Responses {
			sum += r.GetResponseRange().Count
		}
	}
	return sum, nil
}

// CountBelow returns the number of keys that begin with some prefixes, and the revision of the count.
// The prefixes are without [Store.Prefix].
func (s *Store) CountBelow(ctx context.Context, prefixes []string) (n, revision int64, err error) {
	ops := make([]clientv3.Op, len(prefixes))
	for i, below := range prefixes {
		ops[i] = clientv3.OpGet(s.prefix+below, clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	resp, err := s.guard.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, 0, err
	}
	for _, r := range resp.Responses {
		n += r.GetResponseRange().Count
	}
	return n, resp.Header.Revision, nil
}

// Forget drops the memory of this process about a deleted cluster, and reports whether
// there was any. A cache that processes the deletion late may add some again.
func (s *Store) Forget(c cluster.Name) bool {
	if _, exists := s.guard.fences.get(c); exists {
		return false
	}
	stamped, spent := s.stamps.Drop(c), s.guard.tenants.Drop(c)
	return stamped || spent
}
