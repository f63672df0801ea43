package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	sweepPage = 200 // objects read at once
	inFlight  = 16  // transactions of a Purge
	purgeOps  = 32  // objects of one transaction, each of another resource
)

// An Item is a stored object of a cluster that is being deleted.
type Item struct {
	Key
	Revision int64
	// Metadata is empty if the value cannot be read.
	Metadata Metadata
	value    []byte
	store    *Store
}

// Object decodes the object in its storage version.
func (i Item) Object(ctx context.Context) (runtime.Object, error) {
	return i.store.decode(ctx, i.Key, i.value)
}

// Remains returns the resources of which a cluster may store something, those
// included that this process does not serve. The cluster must be [Terminating]:
// as nothing can be created in it any more, in any process, what is missing from
// the answer stays missing.
func (s *Store) Remains(ctx context.Context, c cluster.Name) ([]Resource, error) {
	f, err := s.guard.readFence(ctx, c)
	if err != nil {
		return nil, err
	}
	if f.state != Terminating {
		return nil, fmt.Errorf("logical cluster %s is %q and not %q: %w", c, f.state, Terminating, ErrChanged)
	}
	// The ledger counts every key, whoever made it. From the fence on it only falls.
	if err := s.spine.WaitFor(ctx, f.rev); err != nil {
		return nil, err
	}
	var all []Resource
	for r := range s.spine.ledger.Of(c) {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Resource) int { return cmp.Compare(a.prefix(), b.prefix()) })
	return all, nil
}

// Sweep gives what a cluster stores of a resource, page by page, as it is in etcd.
func (s *Store) Sweep(ctx context.Context, c cluster.Name, r Resource, f func([]Item) error) error {
	start := s.prefix + r.prefix() + "/" + string(c) + "/"
	end := clientv3.GetPrefixRangeEnd(start)
	for key := start; ; {
		resp, err := s.backend.client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(sweepPage))
		if err != nil {
			return err
		}
		page := make([]Item, 0, len(resp.Kvs))
		for _, kv := range resp.Kvs {
			k, ok := parseKey(string(kv.Key)[len(s.prefix):])
			if !ok {
				return fmt.Errorf("malformed key %q", kv.Key)
			}
			page = append(page, s.item(ctx, k, kv))
		}
		if err := f(page); err != nil {
			return err
		}
		if !resp.More {
			return nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Bare returns the item without its value, to be kept for a Purge.
func (i Item) Bare() Item { return Item{Key: i.Key, Revision: i.Revision} }

// APIVersion returns the group and version that the object was stored in.
func (i Item) APIVersion(ctx context.Context) (schema.GroupVersion, error) {
	value, err := i.store.decrypted(ctx, i.Key, i.value)
	if err != nil {
		return schema.GroupVersion{}, err
	}
	var kind runtime.TypeMeta
	if envelope, ok := bytes.CutPrefix(value, protobufMagic); ok {
		var u runtime.Unknown
		err = u.Unmarshal(envelope)
		kind = u.TypeMeta
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(value, &kind)
	}
	if err != nil {
		return schema.GroupVersion{}, fmt.Errorf("version of %s: %w", i.Key, err)
	}
	return schema.ParseGroupVersion(kind.APIVersion)
}

func (s *Store) item(ctx context.Context, k Key, kv *mvccpb.KeyValue) Item {
	i := Item{Key: k, Revision: kv.ModRevision, value: kv.Value, store: s}
	if k.Root != System {
		// What cannot be read has nothing that anybody could wait for.
		i.Metadata, _ = s.metadata(ctx, k, kv.Value)
	}
	return i
}

// Purge deletes objects of one cluster, which must be [Terminating], without
// asking anybody. What has changed since it was swept stays. It returns how many
// it deleted.
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

// onePerResource makes batches that hold at most one object of each resource, in
// which they may share a transaction.
func onePerResource(items []Item) [][]Item {
	var batches [][]Item
	next := map[Resource]int{}
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

// purge deletes a batch in one transaction, or else those that have not changed
// one by one.
func (s *Store) purge(ctx context.Context, c cluster.Name, batch []Item) (int, error) {
	f, err := s.guard.allowed(ctx, c, false)
	if err != nil {
		return 0, err
	}
	if f.state != Terminating {
		return 0, fmt.Errorf("refusing to purge logical cluster %s, which is %s", c, f.state)
	}
	fenced, led := s.prefix+fenceKey(c), s.guard.led(ctx)
	compares := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(fenced), "=", f.rev)}
	var ops []clientv3.Op
	var resources []Resource
	for _, i := range batch {
		if i.Cluster != c {
			return 0, fmt.Errorf("refusing to purge %s with logical cluster %s", i.Key, c)
		}
		key := s.prefix + i.full()
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(key), "=", i.Revision))
		ops = append(ops, clientv3.OpDelete(key))
		resources = append(resources, i.Resource)
	}
	resp, err := s.guard.kv.Txn(ctx).If(led.compares(compares...)...).Then(ops...).Else(led.reads(clientv3.OpGet(fenced))...).Commit()
	if err != nil {
		return 0, err
	}
	if resp.Succeeded {
		s.guard.saw(resp.Header.Revision, resources...)
		return len(batch), nil
	}
	s.guard.saw(resp.Header.Revision)
	if err := led.lost(resp); err != nil {
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

// Count returns how many objects of some resources a cluster has in etcd now.
func (s *Store) Count(ctx context.Context, c cluster.Name, resources ...Resource) (int64, error) {
	var sum int64
	for some := range slices.Chunk(resources, maxTxnOps) {
		ops := make([]clientv3.Op, len(some))
		for i, r := range some {
			ops[i] = clientv3.OpGet(s.prefix+r.prefix()+"/"+string(c)+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
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

// Forget drops what this process remembers of a cluster that is gone, and reports
// whether that was anything. A cache that hears of the end late may ask for a
// part of it again.
func (s *Store) Forget(c cluster.Name) bool {
	if _, exists := s.guard.fences.get(c); exists {
		return false
	}
	stamped, spent := s.stamps.drop(c), s.guard.budgets.drop(c)
	return stamped || spent
}
