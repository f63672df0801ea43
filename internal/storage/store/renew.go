package store

import (
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
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	renewBytes    = 4 << 20 // about the size of a page
	renewInFlight = 8       // parallel writes
	renewRate     = 500     // writes per second: their history takes space in etcd
	// renewEvery is the default of [Options.RenewEvery].
	renewEvery = time.Minute
)

// A manner is how all values of a resource are stored.
type manner struct {
	// Encoding identifies the version and format of native objects.
	Encoding string `json:"encoding,omitempty"`
	// Probe is a value encrypted as the others: if it is stale, they are.
	Probe []byte `json:"probe,omitempty"`
	// Unsettled is set if the last pass had to encrypt values again. Others may have been
	// written with the old key since: by a request in progress, or by a process that does
	// not have the new key yet.
	Unsettled bool `json:"unsettled,omitempty"`
}

// Renew rewrites values that this program would store in another way: native objects in an
// older version, values encrypted with an old key, and values that should be encrypted.
// Custom resources keep their version until they are written. Renew stores its progress, so
// that it continues after a crash, and costs nothing when nothing is left to do. It returns
// when to call it again; 0 for never.
//
// A rewrite is a write: watches get an event, and the object a new resource version. Values
// that other writers change at the same time stay as they are, and so do corrupt values.
// The next call tries again values that cannot be decrypted now.
func (s *Store) Renew(ctx context.Context) (again time.Duration, err error) {
	r := &renewal{store: s, pace: rate.NewLimiter(renewRate, renewInFlight)}
	if err := r.load(ctx); err != nil {
		return 0, err
	}
	for _, resource := range s.feed.Ledger().Resources() {
		if err := r.resource(ctx, resource); err != nil {
			return 0, errors.Join(fmt.Errorf("renew what is stored of %s: %w", resource.KindPrefix(), err), r.save(ctx))
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
		if err := s.format().Raise(ctx); err != nil {
			return 0, err
		}
	}
	if s.values.Encrypts() {
		return s.renewEvery, nil
	}
	return 0, nil
}

// unsettled reports whether any resource has to be checked again.
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
	manners map[string]manner // by [keys.Resource.Prefix]
	rev     int64             // of the key of the manners
	changed bool              // since they were stored
	saved   bool              // in this pass
	left    bool              // whether some values cannot be renewed now
}

func (s *Store) mannersKey() string { return s.prefix + keys.Note("manners") }

func (r *renewal) load(ctx context.Context) error {
	resp, err := r.store.backend.Client.Get(ctx, r.store.mannersKey())
	if err != nil {
		return err
	}
	r.manners = map[string]manner{}
	if len(resp.Kvs) == 0 {
		return nil
	}
	r.rev = resp.Kvs[0].ModRevision
	if json.Unmarshal(resp.Kvs[0].Value, &r.manners) != nil {
		r.manners = map[string]manner{} // all values are checked again
	}
	return nil
}

// save stores the manners, also when ctx has ended.
func (r *renewal) save(ctx context.Context) error {
	if !r.changed {
		return nil
	}
	text, err := json.Marshal(r.manners)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcd.RequestTimeout)
	defer cancel()
	key := r.store.mannersKey()
	resp, err := r.store.backend.Client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", r.rev)).Then(clientv3.OpPut(key, string(text))).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("remember how values are stored: %w", ErrChanged)
	}
	if err == nil {
		r.rev, r.changed, r.saved = resp.Header.Revision, false, true
	}
	return err
}

// resource renews the values of one resource, if they need it.
func (r *renewal) resource(ctx context.Context, of keys.Resource) error {
	how, err := r.store.values.Kind(of)
	if err != nil {
		r.left = true // a program that serves it renews it
		return nil    //nolint:nilerr // it is no failure
	}
	was, known := r.manners[of.Prefix()]
	want := manner{Encoding: r.store.encodingOf(of, how)}
	stale := false
	at := values.Path(keys.Note("manners") + of.Prefix())
	if how.Transformer.Encrypts() {
		if was.Probe != nil {
			_, stale, err = how.Transformer.Open(ctx, was.Probe, at)
		}
		if stale = stale || was.Probe == nil || err != nil; !stale {
			want.Probe = was.Probe
		} else if want.Probe, err = how.Transformer.Seal(ctx, []byte("probe"), at); err != nil { // before any other value
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
	want.Unsettled = found.unreadable > 0 || found.written > 0 && how.Transformer.Encrypts()
	r.left = r.left || found.unreadable > 0
	r.manners[of.Prefix()], r.changed = want, true
	if found.written > 0 {
		return r.save(ctx)
	}
	return nil
}

// encodingOf identifies how native objects of a resource are encoded.
func (s *Store) encodingOf(r keys.Resource, how values.Kind) string {
	if r.Root == keys.Custom {
		return ""
	}
	sum := sha256.Sum256([]byte(s.version + " " + string(how.Codec.Identifier())))
	return hex.EncodeToString(sum[:8])
}

// findings are the results of a renewal.
type findings struct {
	mu         sync.Mutex
	written    int
	corrupt    int
	unreadable int // now, but maybe not later
	example    keys.Key
	why        error // of a value that cannot be read
	failed     error
}

func (f *findings) report(ctx context.Context, r keys.Resource) {
	log := klog.FromContext(ctx)
	if f.written > 0 {
		log.Info("Rewrote what was stored in an older way", "resource", r.KindPrefix(), "objects", f.written)
	}
	if f.corrupt+f.unreadable > 0 {
		log.Error(f.why, "Left values that cannot be read as they are", "resource", r.KindPrefix(), "corrupt", f.corrupt, "unreadable", f.unreadable, "key", f.example)
	}
}

// values renews the values of a resource in all clusters, page by page.
func (r *renewal) values(ctx context.Context, of keys.Resource, how values.Kind, found *findings) error {
	for pages := etcd.NewPager(r.store.backend.Client, r.store.prefix+of.Prefix()+"/", renewBytes); pages.More(); {
		page, err := pages.Next(ctx)
		if err != nil {
			return err
		}
		todo := make(chan *mvccpb.KeyValue)
		var workers sync.WaitGroup
		for range min(renewInFlight, len(page.Kvs)) {
			workers.Go(func() {
				for kv := range todo {
					r.value(ctx, how, kv, found)
				}
			})
		}
		for _, kv := range page.Kvs {
			todo <- kv
		}
		close(todo)
		workers.Wait()
		if found.failed != nil {
			return found.failed
		}
	}
	return nil
}

// value renews one value.
func (r *renewal) value(ctx context.Context, how values.Kind, kv *mvccpb.KeyValue, found *findings) {
	k, ok := keys.Parse(string(kv.Key)[len(r.store.prefix):])
	if !ok {
		return // it is not an object
	}
	fresh, err := how.Renew(ctx, k, values.Path(kv.Key), kv.Value)
	written := false
	if err == nil && fresh != nil {
		written, err = r.write(ctx, k, kv, fresh)
	}
	found.mu.Lock()
	defer found.mu.Unlock()
	switch {
	case values.IsCorrupt(err):
		found.corrupt++
		found.example, found.why = k, err
	case errors.Is(err, values.ErrUnreadable):
		found.unreadable++
		found.example, found.why = k, err
	case err != nil && found.failed == nil:
		found.failed = err
	case written:
		found.written++
	}
}

// write stores a value in place of kv, and reports whether it did: the object may have
// changed or be deleted.
func (r *renewal) write(ctx context.Context, k keys.Key, kv *mvccpb.KeyValue, value []byte) (bool, error) {
	if err := r.pace.Wait(ctx); err != nil {
		return false, err
	}
	g := r.store.guard
	if err := g.capacity.Refuse(ctx, k.Cluster, len(value), true); err != nil {
		return false, err
	}
	resp, _, err := g.write(ctx, k, kv.ModRevision, clientv3.OpPut(string(kv.Key), string(value), clientv3.WithLease(clientv3.LeaseID(kv.Lease))))
	switch {
	case apierrors.IsNotFound(err): // its cluster is deleted
		return false, nil
	case errors.Is(err, rpctypes.ErrLeaseNotFound): // it is expiring
		return false, nil
	case err != nil:
		return false, err
	}
	return resp.Succeeded, nil
}
