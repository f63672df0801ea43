package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd/space"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Write is the write of one object in a [Store.Commit].
type Write struct {
	Resource keys.Resource
	Cluster  cluster.Name
	// Object is the new object. For Delete only its name and namespace are used.
	Object runtime.Object
	// Expect is the present revision of the object; 0 if it must not exist.
	Expect int64
	Delete bool
	// Payer is a cluster whose tenant pays for the bytes that a client made the server write in
	// another cluster. Empty means that Cluster pays.
	Payer cluster.Name
}

// A Fence is the change of a cluster's fence in a [Store.Commit].
type Fence struct {
	Cluster cluster.Name
	// State is the new state; [Gone] deletes the fence.
	State State
	// From is the present state; [Gone] means that there must be no fence.
	From State
}

// ErrChanged is the error of a Commit that changed nothing because a fence was not in the
// expected state.
var ErrChanged = errors.New("changed by another writer")

// Commit makes all changes in one transaction, or none, and returns its revision. The
// caller is the server itself: Commit does no admission and validation, and does not check
// the state of a cluster whose fence it changes. In other clusters the fence decides, as
// for any write. The conditions of ctx apply.
//
// Only one write may be to each resource: watch caches process one event per revision and
// would lose the others.
//
// If an object is not at the expected revision, the error is that of Kubernetes' storage:
// AlreadyExists, NotFound or Conflict.
func (s *Store) Commit(ctx context.Context, writes []Write, changes ...Fence) (int64, error) {
	ctx, charges, err := s.guard.chargeAll(ctx, writes)
	if err != nil {
		return 0, err
	}
	rev, err := s.commit(ctx, writes, changes)
	for _, c := range charges {
		c.Settle(rev, err)
	}
	return rev, err
}

func (s *Store) commit(ctx context.Context, writes []Write, changes []Fence) (int64, error) {
	txn, err := s.transaction(ctx, writes, changes)
	if err != nil {
		return 0, err
	}
	led := election.TermOf(ctx)
	for range attempts {
		whole, err := s.fenced(ctx, *txn)
		if err != nil {
			return 0, err
		}
		resp, err := committed(ctx, s.guard.kv.Txn(ctx).If(led.Compares(whole.compares...)...).Then(whole.ops...))
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
		// The compared keys are read after a failure, so that transactions that succeed,
		// nearly all, do not carry the reads. If all compares hold by then, the transaction
		// is tried again.
		if resp, err = s.guard.kv.Txn(ctx).Then(led.Reads(whole.reads()...)...).Commit(); err != nil {
			return 0, err
		}
		s.guard.saw(resp.Header.Revision)
		if err := led.Lost(resp); err != nil {
			return 0, err
		}
		if err := s.whyNot(txn, whole.fences, resp); err != nil {
			return 0, err
		}
		if err := whole.renew(ctx, resp); err != nil {
			return 0, err
		}
	}
	return 0, apierrors.NewServerTimeout(schema.GroupResource{}, "commit", 1)
}

// comparesBeside is the usual maximum of keys that a transaction compares without changing
// them: fences, a namespace, and the lease of a loop.
const comparesBeside = 4

// A transaction is a Commit in terms of etcd. Its compares are, in this order: those of its
// writes, of the fences that it changes, of other fences, and of its conditions. compared[i] is
// the key of compares[i]. expect[i] is its expected revision, for writes and changed fences only.
type transaction struct {
	compares []clientv3.Cmp
	compared []string
	ops      []clientv3.Op
	expect   []int64
	keys     []keys.Key     // of the writes
	fences   []cluster.Name // changed by the transaction
	// others are the clusters of the writes whose fence does not change, and whether
	// something is created there.
	others map[cluster.Name]bool
	// conditions are those of the context, and those of creations in namespaces.
	conditions []*Condition
}

func (t *transaction) touched() []keys.Resource {
	r := make([]keys.Resource, len(t.keys))
	for i, k := range t.keys {
		r[i] = k.Resource
	}
	return r
}

// reads returns the operations that read the compared keys.
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
		compares: make([]clientv3.Cmp, 0, n+comparesBeside), ops: make([]clientv3.Op, 0, n), compared: make([]string, 0, n+comparesBeside),
		expect: make([]int64, 0, n), keys: make([]keys.Key, 0, len(writes)), fences: make([]cluster.Name, 0, n+comparesBeside),
		others: map[cluster.Name]bool{},
	}
	seen := make(map[keys.Resource]bool, len(writes))
	for _, w := range writes {
		if seen[w.Resource] {
			return nil, fmt.Errorf("refusing a transaction that writes two objects of %s: watch caches would lose one", w.Resource.KindPrefix())
		}
		seen[w.Resource] = true
		if err := s.addWrite(ctx, t, w); err != nil {
			return nil, err
		}
		t.others[w.Cluster] = t.others[w.Cluster] || w.Expect == 0
	}
	if err := s.addConditions(ctx, t); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if err := s.addFence(ctx, t, c); err != nil {
			return nil, err
		}
		delete(t.others, c.Cluster)
	}
	return t, nil
}

// fenced returns t with the compares of fences that it does not change. It invalidates the
// result of the last call: they share memory.
func (s *Store) fenced(ctx context.Context, t transaction) (transaction, error) {
	for c, creates := range t.others {
		f, err := s.guard.allowed(ctx, c, creates)
		if err != nil {
			return t, err
		}
		key := s.prefix + keys.Fence(c).Path()
		t.compares = append(t.compares, clientv3.Compare(clientv3.ModRevision(key), "=", f.rev))
		t.compared = append(t.compared, key)
		t.fences = append(t.fences, c)
	}
	for _, on := range t.conditions {
		t.compares = append(t.compares, on.compare(s.prefix))
		t.compared = append(t.compared, s.prefix+on.On.Path())
	}
	return t, nil
}

// addConditions adds the conditions of the context, and those of creations in namespaces. A
// namespace that t itself writes is compared as any object.
func (s *Store) addConditions(ctx context.Context, t *transaction) error {
	for _, k := range t.keys {
		for _, on := range conditionsOf(ctx, k.Resource) {
			t.conditions = append(t.conditions, on)
			if on.Advance {
				t.ops = append(t.ops, on.advance(s.prefix))
			}
		}
	}
	for i, k := range t.keys {
		in := namespaceKey(k.Cluster, k.Namespace)
		known := func(on *Condition) bool { return on.On == in }
		if t.expect[i] != 0 || slices.ContainsFunc(t.conditions, known) || slices.Contains(t.keys, in) {
			continue
		}
		on, err := s.guard.namespaces.condition(ctx, k)
		if err != nil {
			return err
		}
		if on != nil {
			t.conditions = append(t.conditions, on)
		}
	}
	return nil
}

// renew updates the conditions after t failed. It returns the error of one that cannot hold
// any more.
func (t *transaction) renew(ctx context.Context, resp *clientv3.TxnResponse) error {
	read := resp.Responses[len(resp.Responses)-len(t.conditions):]
	for i, on := range t.conditions {
		if _, err := on.renewed(ctx, first(read[i].GetResponseRange())); err != nil {
			return err
		}
	}
	return nil
}

// quota returns what a write of n bytes counts for. The server makes writes with another payer in
// loops, too, where they are limited like those of a client.
func (w Write) quota(ctx context.Context, n int) quota.Write {
	return quota.Write{Cluster: cmp.Or(w.Payer, w.Cluster), Bytes: n, Creates: w.Expect == 0, Clears: w.Payer == "" && space.ClearsUp(ctx)}
}

func (s *Store) addWrite(ctx context.Context, t *transaction, w Write) error {
	accessor, err := meta.Accessor(w.Object)
	if err != nil {
		return err
	}
	k := keys.Key{Resource: w.Resource, Cluster: w.Cluster, Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	if err := k.Validate(); err != nil {
		return err
	}
	if w.Delete && w.Expect == 0 {
		return fmt.Errorf("delete %s: a delete must expect the revision of the object", k)
	}
	key := s.prefix + k.Path()
	if w.Delete {
		t.ops = append(t.ops, clientv3.OpDelete(key))
	} else {
		s.Complete(w.Resource, w.Object)
		value, err := s.values.Encode(ctx, k, w.Object)
		if err != nil {
			return fmt.Errorf("write %s: %w", k, err)
		}
		if err := s.guard.afford(ctx, w.quota(ctx, len(value))); err != nil {
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
	key := s.prefix + keys.Fence(c.Cluster).Path()
	if err := keys.Fence(c.Cluster).Validate(); err != nil {
		return err
	}
	var from fence
	if c.From != Gone {
		from, _ = s.guard.fences.get(c.Cluster)
		if from.state != c.From { // in memory
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

// whyNot records the fences that were read after a transaction failed, and returns the
// error of the first compare of its own that failed. It returns nil if only other fences
// changed: then the transaction can be tried again.
func (s *Store) whyNot(t *transaction, fences []cluster.Name, resp *clientv3.TxnResponse) error {
	var why error
	for i, op := range resp.Responses {
		read := op.GetResponseRange()
		var rev int64
		if kv := first(read); kv != nil {
			rev = kv.ModRevision
		}
		if i >= len(t.keys) && i-len(t.keys) < len(fences) {
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

// unexpected returns the error for k at another revision than expected.
func unexpected(k keys.Key, expected, is int64) error {
	switch {
	case expected == 0:
		return storage.NewKeyExistsError(k.Path(), 0)
	case is == 0:
		return apierrors.NewNotFound(schema.GroupResource{Group: k.Group, Resource: k.Resource.Resource}, k.Name)
	default:
		return storage.NewResourceVersionConflictsError(k.Path(), is)
	}
}

// committed commits a transaction. Meanwhile the request of ctx gives up its share of the
// processors.
func committed(ctx context.Context, txn clientv3.Txn) (resp *clientv3.TxnResponse, err error) {
	fair.Commit(ctx, func() { resp, err = txn.Commit() })
	return resp, err
}
