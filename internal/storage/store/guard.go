package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/election"
	"github.com/unforked/kcp/internal/storage/etcd/space"
	"github.com/unforked/kcp/internal/storage/keys"
)

// guard is the access of Kubernetes' storage to etcd. It adds the compare of the cluster's
// fence to the transaction of each write, so that several processes on one etcd are correct
// without waiting for each other.
type guard struct {
	kubernetes.Interface // reads
	kv                   clientv3.KV
	prefix               string // of etcd keys, as in "/registry"
	fences               *fences
	namespaces           *namespaceGuard // nil to create objects without a check of their namespace
	limits               Limits          // nil for none
	tenants              *quota.Tenants
	capacity             *space.Capacity

	latest atomic.Int64 // newest revision that this process has seen
	// committed has a *[Progress] for each resource with a cache, by its prefix.
	committed sync.Map
}

var _ kubernetes.Interface = (*guard)(nil)

// attempts limits how often a write is tried if fences change.
const attempts = 4

// List implements [kubernetes.Interface].
func (g *guard) List(ctx context.Context, prefix string, o kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	resp, err := g.Interface.List(ctx, prefix, o)
	if err == nil && o.Revision == 0 {
		g.readAt(prefix, resp.Revision)
	}
	countReads(ctx, resp.Kvs)
	return resp, err
}

// Get implements [kubernetes.Interface].
func (g *guard) Get(ctx context.Context, key string, o kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	resp, err := g.Interface.Get(ctx, key, o)
	if err == nil && o.Revision == 0 {
		g.readAt(key, resp.Revision)
	}
	return resp, err
}

// readAt records that a key or a range was read at a revision.
func (g *guard) readAt(key string, rev int64) {
	r, _, ok := keys.Split(strings.TrimPrefix(key, g.prefix))
	if !ok {
		return
	}
	if v, ok := g.committed.Load(r.Prefix()); ok {
		raise(&v.(*Progress).read, rev)
	}
}

func (g *guard) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	k, err := g.parse(key)
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	if err := g.afford(ctx, quota.Write{Cluster: k.Cluster, Bytes: len(value), Creates: expected == 0, Clears: space.ClearsUp(ctx)}); err != nil {
		return kubernetes.PutResponse{}, err
	}
	ctx, charge, err := g.charge(ctx, SizedWrite{k, len(value), expected == 0, space.ClearsUp(ctx)})
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	resp, kv, err := g.write(ctx, k, expected, clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID)))
	if charge != nil {
		var rev int64
		if err == nil && resp.Succeeded {
			rev = resp.Header.Revision
		}
		charge.Settle(rev, err)
	}
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	return kubernetes.PutResponse{KV: kv, Succeeded: resp.Succeeded, Revision: resp.Header.Revision}, nil
}

func (g *guard) OptimisticDelete(ctx context.Context, key string, expected int64, _ kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	k, err := g.parse(key)
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	resp, kv, err := g.write(ctx, k, expected, clientv3.OpDelete(key))
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	return kubernetes.DeleteResponse{KV: kv, Succeeded: resp.Succeeded, Revision: resp.Header.Revision}, nil
}

// afford returns an error if a write is not allowed now.
func (g *guard) afford(ctx context.Context, w quota.Write) error {
	if err := g.capacity.Refuse(ctx, w.Cluster, w.Bytes, w.Creates); err != nil {
		return err
	}
	return g.tenants.Allow(w, g.capacity.Quota())
}

func (g *guard) parse(key string) (keys.Key, error) {
	if len(key) > len(g.prefix) && key[:len(g.prefix)] == g.prefix {
		if k, ok := keys.Parse(key[len(g.prefix):]); ok {
			return k, nil
		}
	}
	return keys.Key{}, fmt.Errorf("refusing to write at malformed key %q", key)
}

// write executes op if the key is at revision expected, the fence of its cluster allows it
// and its conditions hold. If only the key differs, write returns the key's present value.
func (g *guard) write(ctx context.Context, k keys.Key, expected int64, op clientv3.Op) (*clientv3.TxnResponse, *mvccpb.KeyValue, error) {
	key, fenced := string(op.KeyBytes()), g.prefix+keys.Fence(k.Cluster).Path()
	led, created := election.TermOf(ctx), expected == 0
	var conditions []*Condition
	for n := range attempts {
		f, err := g.allowed(ctx, k.Cluster, created)
		if err == nil && n == 0 {
			conditions, err = g.conditions(ctx, k, created)
		}
		if err != nil {
			return nil, nil, err
		}
		compares := []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(key), "=", expected),
			clientv3.Compare(clientv3.ModRevision(fenced), "=", f.rev),
		}
		ops, reads := []clientv3.Op{op}, []clientv3.Op{clientv3.OpGet(key), clientv3.OpGet(fenced)}
		for _, on := range conditions {
			compares, reads = append(compares, on.compare(g.prefix)), append(reads, on.read(g.prefix))
			if on.Advance {
				ops = append(ops, on.advance(g.prefix))
			}
		}
		txn := g.kv.Txn(ctx).If(led.Compares(compares...)...).Then(ops...).Else(led.Reads(reads...)...)
		resp, err := committed(ctx, txn)
		if err != nil {
			return nil, nil, err
		}
		if resp.Succeeded {
			g.saw(resp.Header.Revision, k.Resource)
			if g.limits != nil {
				g.limits.Wrote(k, resp.Header.Revision)
			}
			noteWrite(ctx)
			return resp, nil, nil
		}
		g.saw(resp.Header.Revision)
		if err := led.Lost(resp); err != nil {
			return nil, nil, err
		}
		now := g.read(k.Cluster, resp.Responses[1].GetResponseRange(), resp.Header.Revision)
		moved := now.rev != f.rev
		for i, on := range conditions {
			renewed, err := on.renewed(ctx, first(resp.Responses[2+i].GetResponseRange()))
			if err != nil {
				return nil, nil, err
			}
			moved = moved || renewed
		}
		if !moved {
			return resp, first(resp.Responses[0].GetResponseRange()), nil
		}
	}
	return nil, nil, apierrors.NewServerTimeout(schema.GroupResource{Group: k.Group, Resource: k.Resource.Resource}, "write", 1)
}

// conditions returns the conditions of a write to k, besides the fence of its cluster.
func (g *guard) conditions(ctx context.Context, k keys.Key, creates bool) ([]*Condition, error) {
	all := conditionsOf(ctx, k.Resource)
	if creates {
		in, err := g.namespaces.condition(ctx, k)
		if err != nil {
			return nil, err
		}
		if in != nil {
			all = append(all, in)
		}
	}
	return all, nil
}

// fence returns the fence of c from memory, or else from etcd.
func (g *guard) fence(ctx context.Context, c cluster.Name) (fence, error) {
	if f, ok := g.fences.get(c); ok {
		return f, nil
	}
	return g.readFence(ctx, c)
}

// allowed returns the fence of c if it allows a write, or else an error. It refuses only
// after a read of etcd.
func (g *guard) allowed(ctx context.Context, c cluster.Name, creates bool) (fence, error) {
	f, ok := g.fences.get(c)
	if !ok || !f.allows(creates) {
		var err error
		if f, err = g.readFence(ctx, c); err != nil {
			return fence{}, err
		}
	}
	if !f.allows(creates) {
		return fence{}, fencedOff(c, f.state)
	}
	return f, nil
}

func (g *guard) readFence(ctx context.Context, c cluster.Name) (fence, error) {
	resp, err := g.kv.Get(ctx, g.prefix+keys.Fence(c).Path())
	if err != nil {
		return fence{}, err
	}
	g.saw(resp.Header.Revision)
	return g.read(c, (*pb.RangeResponse)(resp), resp.Header.Revision), nil
}

// read records the fence of c from a read of its key at revision at.
func (g *guard) read(c cluster.Name, r *pb.RangeResponse, at int64) fence {
	var f fence
	if kv := first(r); kv != nil {
		f = fence{rev: kv.ModRevision, state: State(kv.Value)}
	}
	g.fences.learn(c, f, at)
	return f
}

func first(r *pb.RangeResponse) *mvccpb.KeyValue {
	if r == nil || len(r.Kvs) == 0 {
		return nil
	}
	return r.Kvs[0]
}

// saw records that etcd has reached revision rev and, for resources, that they changed in
// it.
func (g *guard) saw(rev int64, resources ...keys.Resource) {
	raise(&g.latest, rev)
	for _, r := range resources {
		if v, ok := g.committed.Load(r.Prefix()); ok {
			raise(&v.(*Progress).newest, rev)
		}
	}
}

func raise(to *atomic.Int64, rev int64) {
	for {
		old := to.Load()
		if old >= rev || to.CompareAndSwap(old, rev) {
			return
		}
	}
}

// fencedOff returns the error of a write that the state of its cluster forbids.
func fencedOff(c cluster.Name, s State) error {
	clusters := schema.GroupResource{Group: "core.kcp.io", Resource: "logicalclusters"}
	switch s {
	case Gone:
		return apierrors.NewNotFound(clusters, string(c))
	case Terminating:
		return apierrors.NewForbidden(clusters, string(c), errors.New("nothing can be created in it because it is being deleted"))
	default:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("logical cluster %s is %s: nothing can be written in it now; try again later", c, s))
	}
}
