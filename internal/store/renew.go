package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

const (
	renewPage     = 100     // values read at once at first
	renewBytes    = 4 << 20 // and about so much later
	renewInFlight = 8       // written at once
	renewRate     = 500     // written in a second: history, too, fills etcd
	// renewEvery is how soon a new key for encryption is noticed by default.
	renewEvery = time.Minute
)

// A manner is how the values of a resource are stored, every one of them.
type manner struct {
	// Encoding identifies the version and format of native objects.
	Encoding string `json:"encoding,omitempty"`
	// Probe is a value encrypted as the others are: when it is stale, they are.
	Probe []byte `json:"probe,omitempty"`
	// Unsettled tells that values had to be encrypted anew when they were looked at last.
	// Somebody may have written with the old key since: a request that was under way, or
	// a process that has not heard of the new one yet.
	Unsettled bool `json:"unsettled,omitempty"`
}

// Renew rewrites what is stored in another way than this program would store it: native
// objects in an older version, and what is encrypted with an old key or should be
// encrypted and is not. Custom resources stay at their version until they are written.
// It remembers what it is done with, so that it goes on after a crash where it was, and
// costs nothing when there is nothing to do. It returns when to call it again, 0 for
// never.
//
// A rewrite is a write: watchers are told of a change of the object, and it gets a new
// resource version. What somebody else writes at the same time stays as it is, and what
// cannot be decoded, too.
func (s *Store) Renew(ctx context.Context) (again time.Duration, err error) {
	r := &renewal{store: s, pace: rate.NewLimiter(renewRate, renewInFlight)}
	if err := r.load(ctx); err != nil {
		return 0, err
	}
	for _, resource := range s.spine.ledger.resources() {
		if err := r.resource(ctx, resource); err != nil {
			return 0, errors.Join(fmt.Errorf("renew what is stored of %s: %w", resource.kindPrefix(), err), r.save(ctx))
		}
	}
	done := r.changed || r.saved
	if err := r.save(ctx); err != nil {
		return 0, err
	}
	if done && !r.left && !r.unsettled() {
		klog.FromContext(ctx).Info("Everything is stored as this server stores it, with the newest keys")
	}
	if !r.left {
		if err := s.raiseFormat(ctx); err != nil {
			return 0, err
		}
	}
	if s.encryption != nil {
		return s.renewEvery, nil
	}
	return 0, nil
}

// unsettled reports whether anything has to be looked at again.
func (r *renewal) unsettled() bool {
	for _, m := range r.manners {
		if m.Unsettled {
			return true
		}
	}
	return false
}

// A renewal is one pass of [Store.Renew].
type renewal struct {
	store   *Store
	pace    *rate.Limiter
	manners map[string]manner // by [Resource.prefix]
	rev     int64             // of the key that they are stored at
	changed bool              // since they were stored
	saved   bool              // in this pass
	left    bool              // whether something is left that this program does not serve
}

func (s *Store) mannersKey() string { return s.prefix + "/" + string(System) + "/manners" }

func (r *renewal) load(ctx context.Context) error {
	resp, err := r.store.backend.client.Get(ctx, r.store.mannersKey())
	if err != nil {
		return err
	}
	r.manners = map[string]manner{}
	if len(resp.Kvs) == 0 {
		return nil
	}
	r.rev = resp.Kvs[0].ModRevision
	if json.Unmarshal(resp.Kvs[0].Value, &r.manners) != nil {
		r.manners = map[string]manner{} // everything is looked at again
	}
	return nil
}

// save remembers what is done, also when ctx has ended.
func (r *renewal) save(ctx context.Context) error {
	if !r.changed {
		return nil
	}
	text, err := json.Marshal(r.manners)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), brief)
	defer cancel()
	key := r.store.mannersKey()
	resp, err := r.store.backend.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", r.rev)).Then(clientv3.OpPut(key, string(text))).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("remember how values are stored: %w", ErrChanged)
	}
	if err == nil {
		r.rev, r.changed, r.saved = resp.Header.Revision, false, true
	}
	return err
}

// resource renews the values of one resource, if they need it.
func (r *renewal) resource(ctx context.Context, of Resource) error {
	how, err := r.store.kind(of)
	if err != nil {
		r.left = true // a program that serves it will
		return nil    //nolint:nilerr // it is no failure
	}
	was, known := r.manners[of.prefix()]
	want := manner{Encoding: r.store.encodingOf(of, how)}
	stale := false
	at := belowPrefix("/" + string(System) + "/manners" + of.prefix())
	if how.transformer.inner != nil {
		if was.Probe != nil {
			_, stale, err = how.transformer.open(ctx, was.Probe, at)
		}
		if stale = stale || was.Probe == nil || err != nil; !stale {
			want.Probe = was.Probe
		} else if want.Probe, err = how.transformer.seal(ctx, []byte("probe"), at); err != nil { // before any value is
			return err
		}
	}
	if known && want.Encoding == was.Encoding && !stale && !was.Unsettled {
		return nil
	}
	found := findings{}
	err = r.values(ctx, of, how, &found)
	found.report(ctx, of)
	if err != nil {
		return err
	}
	want.Unsettled = found.written > 0 && how.transformer.inner != nil
	r.manners[of.prefix()], r.changed = want, true
	if found.written > 0 {
		return r.save(ctx)
	}
	return nil
}

// encodingOf identifies how native objects of a resource are encoded.
func (s *Store) encodingOf(r Resource, how kind) string {
	if r.Root == Custom {
		return ""
	}
	sum := sha256.Sum256([]byte(s.version + " " + string(how.codec.Identifier())))
	return hex.EncodeToString(sum[:8])
}

// findings is what a renewal met.
type findings struct {
	mu          sync.Mutex
	written     int
	undecodable int
	example     Key
	failed      error
}

func (f *findings) report(ctx context.Context, r Resource) {
	log := klog.FromContext(ctx)
	if f.written > 0 {
		log.Info("Rewrote what was stored in an older way", "resource", r.kindPrefix(), "objects", f.written)
	}
	if f.undecodable > 0 {
		log.Info("Left what cannot be decoded as it is", "resource", r.kindPrefix(), "objects", f.undecodable, "key", f.example)
	}
}

// values renews the values of a resource in all clusters, page by page.
func (r *renewal) values(ctx context.Context, of Resource, how kind, found *findings) error {
	start := r.store.prefix + of.prefix() + "/"
	end := clientv3.GetPrefixRangeEnd(start)
	for key, limit := start, int64(renewPage); ; {
		resp, err := r.store.backend.client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(limit))
		if err != nil {
			return err
		}
		todo := make(chan *mvccpb.KeyValue)
		var workers sync.WaitGroup
		for range min(renewInFlight, len(resp.Kvs)) {
			workers.Go(func() {
				for kv := range todo {
					r.value(ctx, how, kv, found)
				}
			})
		}
		var bytes int64
		for _, kv := range resp.Kvs {
			bytes += int64(len(kv.Key) + len(kv.Value))
			todo <- kv
		}
		close(todo)
		workers.Wait()
		if found.failed != nil || !resp.More {
			return found.failed
		}
		limit = nextPage(limit, bytes, renewBytes)
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// value renews one value.
func (r *renewal) value(ctx context.Context, how kind, kv *mvccpb.KeyValue, found *findings) {
	k, ok := parseKey(string(kv.Key)[len(r.store.prefix):])
	if !ok {
		return // at what is no key nobody reads
	}
	fresh, err := how.renewed(ctx, k, kv)
	written := false
	if err == nil && fresh != nil {
		written, err = r.write(ctx, k, kv, fresh)
	}
	found.mu.Lock()
	defer found.mu.Unlock()
	switch {
	case errors.Is(err, errUndecodable):
		found.undecodable++
		found.example = k
	case err != nil && found.failed == nil:
		found.failed = err
	case written:
		found.written++
	}
}

var errUndecodable = errors.New("cannot be decoded")

// renewed returns the value to store instead of kv, nil if that is good as it is.
func (how kind) renewed(ctx context.Context, k Key, kv *mvccpb.KeyValue) ([]byte, error) {
	at := belowPrefix(kv.Key)
	framed, stale, err := how.transformer.TransformFromStorage(ctx, kv.Value, at)
	if err != nil {
		return nil, errUndecodable
	}
	fresh := framed
	if k.Root == Native {
		obj, err := runtime.Decode(how.codec, framed)
		if err != nil {
			return nil, errUndecodable
		}
		if fresh, err = runtime.Encode(how.codec, obj); err != nil {
			return nil, errUndecodable
		}
	}
	if !stale && bytes.Equal(fresh, framed) {
		return nil, nil
	}
	return how.transformer.TransformToStorage(ctx, fresh, at)
}

// write stores a value where kv is, and reports whether it did: somebody else may have
// been there, or the object may be gone.
func (r *renewal) write(ctx context.Context, k Key, kv *mvccpb.KeyValue, value []byte) (bool, error) {
	if err := r.pace.Wait(ctx); err != nil {
		return false, err
	}
	g := r.store.guard
	if err := g.capacity.refuse(ctx, k.Cluster, len(value), true); err != nil {
		return false, err
	}
	resp, _, err := g.write(ctx, k, kv.ModRevision, clientv3.OpPut(string(kv.Key), string(value), clientv3.WithLease(clientv3.LeaseID(kv.Lease))))
	switch {
	case apierrors.IsNotFound(err): // so is its cluster
		return false, nil
	case errors.Is(err, rpctypes.ErrLeaseNotFound): // it expires just now
		return false, nil
	case err != nil:
		return false, err
	}
	return resp.Succeeded, nil
}
