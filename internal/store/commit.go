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

// ErrChanged tells that a Commit did nothing because a fence that it changes was
// not as it expected.
var ErrChanged = errors.New("changed by somebody else")

// Commit makes all changes in one transaction, or none, and returns the revision
// they share. It writes for the server itself: admission and validation are the
// caller's, as is the choice of what may be written in a cluster whose fence it
// changes. In other clusters their fence decides, as for any write.
//
// At most one write may touch a resource: watch caches take one event for each
// revision and would silently lose the others.
//
// An object that was not as expected is reported as by the storage of its
// resource: it exists, is not found, or conflicts.
func (s *Store) Commit(ctx context.Context, writes []Write, changes ...Fence) (int64, error) {
	txn, err := s.transaction(ctx, writes, changes)
	if err != nil {
		return 0, err
	}
	led := s.guard.led(ctx)
	for range attempts {
		whole, err := s.fenced(ctx, *txn)
		if err != nil {
			return 0, err
		}
		resp, err := committed(ctx, s.guard.kv.Txn(ctx).If(led.compares(whole.compares...)...).Then(whole.ops...))
		if err != nil {
			return 0, err
		}
		rev := resp.Header.Revision
		if resp.Succeeded {
			s.guard.saw(rev, txn.touched()...)
			for _, c := range changes {
				s.guard.fences.learn(c.Cluster, fence{rev: rev, state: c.State}, rev)
			}
			return rev, nil
		}
		// Why not is read afterwards, so that those that succeed, nearly all, do not
		// carry the question. What holds again by then is tried again.
		if resp, err = s.guard.kv.Txn(ctx).Then(led.reads(whole.reads()...)...).Commit(); err != nil {
			return 0, err
		}
		s.guard.saw(resp.Header.Revision)
		if err := led.lost(resp); err != nil {
			return 0, err
		}
		if err := s.whyNot(txn, whole.fences, resp); err != nil {
			return 0, err
		}
	}
	return 0, apierrors.NewServerTimeout(schema.GroupResource{}, "commit", 1)
}

// fencesBeside is of how many clusters, usually at most, a transaction compares the
// fence without changing it, and one place for the lease of a loop.
const fencesBeside = 3

// A transaction is a Commit in etcd's terms: first its writes, then the fences
// that it changes. compared[i] is the key in etcd of compares[i].
type transaction struct {
	compares []clientv3.Cmp
	compared []string
	ops      []clientv3.Op
	expect   []int64
	keys     []Key          // of the writes
	fences   []cluster.Name // whose fences follow
	// others are the clusters written in whose fences do not change, and whether
	// something is created there.
	others map[cluster.Name]bool
}

func (t *transaction) touched() []Resource {
	r := make([]Resource, len(t.keys))
	for i, k := range t.keys {
		r[i] = k.Resource
	}
	return r
}

// reads returns the operations that read what the transaction compares.
func (t *transaction) reads() []clientv3.Op {
	all := make([]clientv3.Op, len(t.compared))
	for i, key := range t.compared {
		all[i] = clientv3.OpGet(key)
	}
	return all
}

func (t *transaction) compare(key string, rev int64) {
	t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", rev))
	t.compared = append(t.compared, key)
	t.expect = append(t.expect, rev)
}

func (s *Store) transaction(ctx context.Context, writes []Write, changes []Fence) (*transaction, error) {
	if len(changes) > 1 {
		return nil, errors.New("refusing a transaction that changes two fences")
	}
	n := len(writes) + len(changes)
	t := &transaction{
		compares: make([]clientv3.Cmp, 0, n+fencesBeside), ops: make([]clientv3.Op, 0, n), compared: make([]string, 0, n+fencesBeside),
		expect: make([]int64, 0, n), keys: make([]Key, 0, len(writes)), fences: make([]cluster.Name, 0, n+fencesBeside),
		others: map[cluster.Name]bool{},
	}
	seen := make(map[Resource]bool, len(writes))
	for _, w := range writes {
		if seen[w.Resource] {
			return nil, fmt.Errorf("refusing a transaction that writes two objects of %s: watch caches would lose one", w.Resource.kindPrefix())
		}
		seen[w.Resource] = true
		if err := s.addWrite(ctx, t, w); err != nil {
			return nil, err
		}
		t.others[w.Cluster] = t.others[w.Cluster] || w.Expect == 0
	}
	for _, c := range changes {
		if err := s.addFence(ctx, t, c); err != nil {
			return nil, err
		}
		delete(t.others, c.Cluster)
	}
	return t, nil
}

// fenced returns t with the compares of the fences that it does not change. What it
// returned before is void then: they share memory.
func (s *Store) fenced(ctx context.Context, t transaction) (transaction, error) {
	for c, creates := range t.others {
		f, err := s.guard.allowed(ctx, c, creates)
		if err != nil {
			return t, err
		}
		key := s.prefix + fenceKey(c)
		t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", f.rev))
		t.compared = append(t.compared, key)
		t.fences = append(t.fences, c)
	}
	return t, nil
}

func (s *Store) addWrite(ctx context.Context, t *transaction, w Write) error {
	accessor, err := meta.Accessor(w.Object)
	if err != nil {
		return err
	}
	k := Key{Resource: w.Resource, Cluster: w.Cluster, Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	if err := k.check(); err != nil {
		return err
	}
	if w.Delete && w.Expect == 0 {
		return fmt.Errorf("delete %s: a delete must expect the revision of the object", k)
	}
	key := s.prefix + k.full()
	if w.Delete {
		t.ops = append(t.ops, clientv3.OpDelete(key))
	} else {
		s.complete(w.Resource, w.Object)
		value, err := s.encode(ctx, k, w.Object)
		if err != nil {
			return fmt.Errorf("write %s: %w", k, err)
		}
		if err := s.guard.afford(ctx, w.Cluster, len(value), w.Expect == 0); err != nil {
			return err
		}
		put := clientv3.OpPut(key, "")
		put.WithValueBytes(value)
		t.ops = append(t.ops, put)
	}
	t.compare(key, w.Expect)
	t.keys = append(t.keys, k)
	return nil
}

func (s *Store) addFence(ctx context.Context, t *transaction, c Fence) error {
	key := s.prefix + fenceKey(c.Cluster)
	if err := fenceAt(c.Cluster).check(); err != nil {
		return err
	}
	var from fence
	if c.From != Gone {
		from, _ = s.guard.fences.get(c.Cluster)
		if from.state != c.From { // as far as this process knows
			var err error
			if from, err = s.guard.readFence(ctx, c.Cluster); err != nil {
				return err
			}
		}
		if from.state != c.From {
			return fmt.Errorf("logical cluster %s is %q and not %q: %w", c.Cluster, from.state, c.From, ErrChanged)
		}
	}
	t.compare(key, from.rev)
	t.fences = append(t.fences, c.Cluster)
	if c.State == Gone {
		t.ops = append(t.ops, clientv3.OpDelete(key))
	} else {
		t.ops = append(t.ops, clientv3.OpPut(key, string(c.State)))
	}
	return nil
}

// whyNot learns the fences that were read after a transaction failed, and turns the first
// compare of its own that did not hold into an error. It returns nil if only a
// fence moved that it does not change: then it may be tried again.
func (s *Store) whyNot(t *transaction, fences []cluster.Name, resp *clientv3.TxnResponse) error {
	var why error
	for i, op := range resp.Responses {
		read := op.GetResponseRange()
		var rev int64
		if kv := first(read); kv != nil {
			rev = kv.ModRevision
		}
		if i >= len(t.keys) {
			s.guard.read(fences[i-len(t.keys)], read, resp.Header.Revision)
		}
		if why != nil || i >= len(t.expect) || rev == t.expect[i] {
			continue
		}
		if i >= len(t.keys) {
			why = fmt.Errorf("logical cluster %s: %w", fences[i-len(t.keys)], ErrChanged)
			continue
		}
		why = unexpected(t.keys[i], t.expect[i], rev)
	}
	return why
}

// unexpected tells that k is at another revision than expected.
func unexpected(k Key, expected, is int64) error {
	switch {
	case expected == 0:
		return storage.NewKeyExistsError(k.full(), 0)
	case is == 0:
		return apierrors.NewNotFound(schema.GroupResource{Group: k.Group, Resource: k.Resource.Resource}, k.Name)
	default:
		return storage.NewResourceVersionConflictsError(k.full(), is)
	}
}
