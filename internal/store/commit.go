package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
)

// A Write is one object's part of a [Store.Commit].
type Write struct {
	Resource Resource
	Cluster  cluster.Name
	// Object is what to write, or for Delete anything with the name and namespace.
	Object runtime.Object
	// Expect is the revision that the object must be at; 0 means it must not exist.
	Expect int64
	Delete bool
}

// A Fence is the change of a cluster's fence as a part of a [Store.Commit].
type Fence struct {
	Cluster cluster.Name
	// State the fence gets; [Gone] removes it.
	State State
	// From is the state it must have; [Gone] means that there must be none.
	From State
}

// ErrChanged tells that a Commit did nothing because an object or a fence was
// not as it expected.
var ErrChanged = errors.New("changed by somebody else")

// Commit makes all changes in one transaction, or none, and returns the revision
// they share. It writes for the server itself: admission and validation are the
// caller's, as is the choice of what may be written in which state of a cluster.
//
// At most one write may touch a resource: watch caches take one event for each
// revision and would silently lose the others.
func (s *Store) Commit(ctx context.Context, writes []Write, changes ...Fence) (int64, error) {
	txn, err := s.transaction(ctx, writes, changes)
	if err != nil {
		return 0, err
	}
	resp, err := s.guard.kv.Txn(ctx).If(txn.compares...).Then(txn.ops...).Else(txn.reads...).Commit()
	if err != nil {
		return 0, err
	}
	rev := resp.Header.Revision
	if !resp.Succeeded {
		s.guard.saw(rev)
		return 0, s.whyNot(txn, resp)
	}
	s.guard.saw(rev, txn.touched()...)
	for _, c := range changes {
		s.guard.fences.learn(c.Cluster, fence{rev: rev, state: c.State}, rev)
	}
	return rev, nil
}

// A transaction is a Commit in etcd's terms. reads[i] shows the key of compares[i].
type transaction struct {
	compares   []clientv3.Cmp
	ops, reads []clientv3.Op
	keys       []Key // of the first compares, one a write; fences follow
	expect     []int64
	clusters   []cluster.Name // of the fences
}

func (t *transaction) touched() []Resource {
	r := make([]Resource, len(t.keys))
	for i, k := range t.keys {
		r[i] = k.Resource
	}
	return r
}

func (t *transaction) compare(key string, rev int64) {
	t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", rev))
	t.reads = append(t.reads, clientv3.OpGet(key))
	t.expect = append(t.expect, rev)
}

func (s *Store) transaction(ctx context.Context, writes []Write, changes []Fence) (*transaction, error) {
	t := &transaction{}
	seen := map[Resource]bool{}
	for _, w := range writes {
		if seen[w.Resource] {
			return nil, fmt.Errorf("refusing a transaction that writes two objects of %s: watch caches would lose one", w.Resource.kindPrefix())
		}
		seen[w.Resource] = true
		if err := s.addWrite(ctx, t, w); err != nil {
			return nil, err
		}
	}
	changed := map[cluster.Name]bool{}
	for _, c := range changes {
		if len(changed) > 0 {
			return nil, errors.New("refusing a transaction that changes two fences")
		}
		changed[c.Cluster] = true
		if err := s.addFence(ctx, t, c); err != nil {
			return nil, err
		}
	}
	for _, w := range writes {
		if changed[w.Cluster] {
			continue
		}
		changed[w.Cluster] = true
		f, err := s.guard.fence(ctx, w.Cluster)
		if err != nil {
			return nil, err
		}
		if !f.allows(w.Expect == 0) {
			return nil, fencedOff(w.Cluster, f.state)
		}
		t.compare(s.prefix+fenceKey(w.Cluster), f.rev)
		t.clusters = append(t.clusters, w.Cluster)
	}
	return t, nil
}

func (s *Store) addWrite(ctx context.Context, t *transaction, w Write) error {
	accessor, err := meta.Accessor(w.Object)
	if err != nil {
		return err
	}
	k := Key{Resource: w.Resource, Cluster: w.Cluster, Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	key := s.prefix + k.full()
	if w.Delete {
		t.ops = append(t.ops, clientv3.OpDelete(key))
	} else {
		value, err := s.encode(ctx, k, w.Object)
		if err != nil {
			return fmt.Errorf("write %s: %w", k, err)
		}
		if err := s.guard.budgets.spend(w.Cluster, len(value)); err != nil {
			return err
		}
		t.ops = append(t.ops, clientv3.OpPut(key, string(value)))
	}
	t.compare(key, w.Expect)
	t.keys = append(t.keys, k)
	return nil
}

func (s *Store) addFence(ctx context.Context, t *transaction, c Fence) error {
	key := s.prefix + fenceKey(c.Cluster)
	var from fence
	if c.From != Gone {
		var err error
		if from, err = s.guard.fence(ctx, c.Cluster); err != nil {
			return err
		}
		if from.state != c.From {
			return fmt.Errorf("logical cluster %s is %q and not %q: %w", c.Cluster, from.state, c.From, ErrChanged)
		}
	}
	t.compare(key, from.rev)
	t.clusters = append(t.clusters, c.Cluster)
	if c.State == Gone {
		t.ops = append(t.ops, clientv3.OpDelete(key))
	} else {
		t.ops = append(t.ops, clientv3.OpPut(key, string(c.State)))
	}
	return nil
}

// whyNot turns a failed transaction into an error about the first compare that
// did not hold.
func (s *Store) whyNot(t *transaction, resp *clientv3.TxnResponse) error {
	for i, op := range resp.Responses {
		read := op.GetResponseRange()
		var rev int64
		if kv := first(read); kv != nil {
			rev = kv.ModRevision
		}
		if i >= len(t.keys) { // a fence: remember what it is now
			c := t.clusters[i-len(t.keys)]
			f := s.guard.read(c, read, resp.Header.Revision)
			if f.rev != t.expect[i] && !f.allows(true) && t.expect[i] != 0 {
				return fencedOff(c, f.state)
			}
			continue
		}
		if rev == t.expect[i] {
			continue
		}
		k := t.keys[i]
		if t.expect[i] == 0 {
			return storage.NewKeyExistsError(k.full(), 0)
		}
		if rev == 0 {
			return apierrors.NewNotFound(schema.GroupResource{Group: k.Group, Resource: k.Resource.Resource}, k.Name)
		}
		return storage.NewResourceVersionConflictsError(k.full(), rev)
	}
	return ErrChanged
}
