package cacher

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/values"
)

// probes is the number of values that are tried at a time.
const probes = 8

// An unread records which values could not be decrypted when a watch cache was filled, for
// example because a key service was down. The cache has objects without labels in their place,
// so a list with a selector would miss them, and a client would take them for deleted.
type unread struct {
	any atomic.Bool // whether now or next has an entry

	mu      sync.Mutex
	now     map[cluster.Name]keys.Key // in the cache: one value of each cluster
	next    map[cluster.Name]keys.Key // in the list that fills the cache
	listed  bool                      // whether there was a list since the last watch began
	probing bool
}

// missed records a value of a list, and returns true.
func (u *unread) missed(p values.Path) bool {
	r, tail, _ := keys.Split(string(p))
	in, namespace, name, _ := keys.SplitTail(tail)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.next == nil {
		u.next = map[cluster.Name]keys.Key{}
	}
	u.next[in] = r.Key(in, namespace, name)
	u.any.Store(true)
	return true
}

// list begins a list that will fill the cache.
func (u *unread) list() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.next, u.listed = nil, true
}

// filled records that the cache has the objects of the last list instead of those before. It
// reports whether the caller must start to probe.
func (u *unread) filled() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.listed {
		return false
	}
	for _, k := range u.next {
		klog.Errorf("%d logical clusters have %s that cannot be decrypted now, for example %s. Lists that would miss them fail until they can be.",
			len(u.next), k.Resource.Resource, k.Tail())
		break
	}
	u.now, u.next, u.listed = u.next, nil, false
	u.any.Store(len(u.now) > 0)
	start := len(u.now) > 0 && !u.probing
	u.probing = u.probing || start
	return start
}

// complete returns an error if a request would miss a value.
func (f *feeding) complete(ctx context.Context) error {
	u := &f.unread
	if !u.any.Load() {
		return nil
	}
	in, _ := cluster.From(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, some := range []map[cluster.Name]keys.Key{u.now, u.next} {
		for c, k := range some {
			switch {
			case c == in:
				return undecrypted("the stored %s %s/%s cannot be decrypted now", k.Resource.Resource, k.Namespace, k.Name)
			case cluster.IsAll(ctx) && f.inScope(ctx, c):
				return undecrypted("some %s in other logical clusters cannot be decrypted now", k.Resource.Resource)
			}
		}
	}
	return nil
}

func (f *feeding) inScope(ctx context.Context, c cluster.Name) bool {
	scope := registry.ScopeOf(ctx)
	return scope == nil || scope.Has(c, f.group.store.Latest())
}

func undecrypted(format string, args ...any) error {
	err := apierrors.NewServiceUnavailable(fmt.Sprintf(format, args...))
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 5}
	return err
}

// some returns a few of the values in random order. It reports false, and the caller must stop
// to probe, if there are none.
func (u *unread) some() ([]keys.Key, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	few := make([]keys.Key, 0, probes)
	for k := range maps.Values(u.now) {
		if few = append(few, k); len(few) == probes {
			break
		}
	}
	u.probing = len(few) > 0
	return few, u.probing
}

// probe tries at intervals to read values that could not be decrypted, and fills the cache anew
// once one of them can be.
func (f *feeding) probe() {
	tick := time.NewTicker(f.group.ProbeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.ctx.Done():
			return
		}
		few, any := f.unread.some()
		if !any {
			return
		}
		for _, k := range few {
			if _, _, err := f.group.store.Metadata(f.ctx, k); err == nil || values.IsCorrupt(err) {
				f.refill()
				break
			}
		}
	}
}

// refill makes the cache read all its objects again.
func (f *feeding) refill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale = true
	f.watch.Interface.Stop()
}

// lost makes the cache read all its objects again after the watch has ended at a value that
// cannot be read now. It returns false.
func (f *feeding) lost(values.Path) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale = true
	return false
}

// isStale reports whether the cache must read all its objects again.
func (f *feeding) isStale() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stale
}
