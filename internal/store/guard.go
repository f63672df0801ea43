package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// guard is where every read and write of Kubernetes' storage meets etcd. To each
// write it adds the compare of its cluster's fence, in the same transaction, so
// that several processes on one etcd are correct without waiting for each other.
type guard struct {
	kubernetes.Interface // reads
	kv                   clientv3.KV
	prefix               string // of etcd keys, as in "/registry"
	lease                string // key that the writes of loops compare
	fences               *fences
	budgets              *budgets
	capacity             *capacity

	latest atomic.Int64 // newest revision that this process has seen
	// committed has, by the prefix of each resource with a cache, as *atomic.Int64 the
	// newest revision committed there: by this process or, once the spine has applied it,
	// by another.
	committed sync.Map
}

var _ kubernetes.Interface = (*guard)(nil)

// attempts bounds how often a write whose fence moved is tried again.
const attempts = 4

// List implements [kubernetes.Interface].
func (g *guard) List(ctx context.Context, prefix string, o kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	resp, err := g.Interface.List(ctx, prefix, o)
	if n, ok := ctx.Value(readKey{}).(*int); ok {
		*n += len(resp.Kvs)
	}
	return resp, err
}

func (g *guard) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	k, err := g.parse(key)
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	if err := g.afford(ctx, k.Cluster, len(value), expected == 0); err != nil {
		return kubernetes.PutResponse{}, err
	}
	resp, kv, err := g.write(ctx, k, expected, clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID)))
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

// afford refuses a write of n bytes that a cluster must not make now.
func (g *guard) afford(ctx context.Context, c cluster.Name, n int, creates bool) error {
	if err := g.capacity.refuse(ctx, c, n, creates); err != nil {
		return err
	}
	return g.budgets.spend(c, n)
}

func (g *guard) parse(key string) (Key, error) {
	if len(key) > len(g.prefix) && key[:len(g.prefix)] == g.prefix {
		if k, ok := parseKey(key[len(g.prefix):]); ok {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("refusing to write at malformed key %q", key)
}

// write does op if its key is at revision expected and the fence of its cluster
// allows it. If only the key differs, it returns the key's present value.
func (g *guard) write(ctx context.Context, k Key, expected int64, op clientv3.Op) (*clientv3.TxnResponse, *mvccpb.KeyValue, error) {
	key, fenced := string(op.KeyBytes()), g.prefix+fenceKey(k.Cluster)
	on, led := conditionOf(ctx, k.Resource), g.led(ctx)
	for range attempts {
		f, err := g.allowed(ctx, k.Cluster, expected == 0)
		if err != nil {
			return nil, nil, err
		}
		compares := []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(key), "=", expected),
			clientv3.Compare(clientv3.ModRevision(fenced), "=", f.rev),
		}
		ops, reads := []clientv3.Op{op}, []clientv3.Op{clientv3.OpGet(key), clientv3.OpGet(fenced)}
		if on != nil {
			compares, reads = append(compares, on.compare(g.prefix)), append(reads, on.read(g.prefix))
			if on.Advance {
				ops = append(ops, on.advance(g.prefix))
			}
		}
		txn := g.kv.Txn(ctx).If(led.compares(compares...)...).Then(ops...).Else(led.reads(reads...)...)
		resp, err := committed(ctx, txn)
		if err != nil {
			return nil, nil, err
		}
		if resp.Succeeded {
			g.saw(resp.Header.Revision, k.Resource)
			return resp, nil, nil
		}
		g.saw(resp.Header.Revision)
		if err := led.lost(resp); err != nil {
			return nil, nil, err
		}
		now := g.read(k.Cluster, resp.Responses[1].GetResponseRange(), resp.Header.Revision)
		moved := now.rev != f.rev
		if on != nil {
			renewed, err := on.renewed(ctx, first(resp.Responses[2].GetResponseRange()))
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

// fence returns the fence of c as this process knows it, or else as it is.
func (g *guard) fence(ctx context.Context, c cluster.Name) (fence, error) {
	if f, ok := g.fences.get(c); ok {
		return f, nil
	}
	return g.readFence(ctx, c)
}

// allowed returns the fence of c, which lets a write go ahead, or the error that
// refuses it. It never refuses for what is no longer so.
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
	resp, err := g.kv.Get(ctx, g.prefix+fenceKey(c))
	if err != nil {
		return fence{}, err
	}
	g.saw(resp.Header.Revision)
	return g.read(c, (*pb.RangeResponse)(resp), resp.Header.Revision), nil
}

// read learns the fence of c from a read of its key at revision at.
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

// saw records that revision rev exists and, for resources, that it was committed
// there.
func (g *guard) saw(rev int64, resources ...Resource) {
	raise(&g.latest, rev)
	for _, r := range resources {
		if v, ok := g.committed.Load(r.prefix()); ok {
			raise(v.(*atomic.Int64), rev)
		}
	}
}

// follow returns the newest revision that is known to be committed under the prefix
// of a resource, from now on: it begins at the newest of all. There is one for each
// cache, and not for each resource that was ever written.
func (g *guard) follow(prefix string) *atomic.Int64 {
	v, _ := g.committed.LoadOrStore(prefix, new(atomic.Int64))
	newest := v.(*atomic.Int64)
	raise(newest, g.latest.Load()) // after the Store: a commit that did not see it, this sees
	return newest
}

// unfollow ends what follow began.
func (g *guard) unfollow(prefix string) { g.committed.Delete(prefix) }

func raise(to *atomic.Int64, rev int64) {
	for {
		old := to.Load()
		if old >= rev || to.CompareAndSwap(old, rev) {
			return
		}
	}
}

// fencedOff is the answer to a write that the state of its cluster forbids.
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
