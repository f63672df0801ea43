package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/keys"
)

// behind changes a fence directly in etcd, as another process would.
func behind(t testing.TB, s *Store, c cluster.Name, state State) int64 {
	t.Helper()
	key := s.prefix + keys.Fence(c).Path()
	if state == Gone {
		r, err := s.RawClient().Delete(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	r, err := s.RawClient().Put(t.Context(), key, string(state))
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

// unfollowed opens a store whose feed does not run. It learns of changes of other processes
// only from failed transactions.
func unfollowed(t testing.TB) (*Store, storage.Interface) {
	t.Helper()
	s, err := Open(t.Context(), here(Options{Dir: t.TempDir(), Version: "1.36", NoSync: true}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, configMapsOf(t, s)
}

// The next write observes a fence that another process changed.
func TestFenceChangedBehindTheBack(t *testing.T) {
	s, cm := unfollowed(t)
	create(t, s, "c1")
	n := 0
	attempt := func() (create, update error) {
		n++
		create = cm.Create(in("c1"), fmt.Sprint(cmRoot, "/ns/n", n), configMap("ns", fmt.Sprint("n", n), ""), nil, 0)
		update = cm.GuaranteedUpdate(in("c1"), cmRoot+"/ns/old", &corev1.ConfigMap{}, false, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return configMap("ns", "old", fmt.Sprint(n)), nil, nil
		}, nil)
		return create, update
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/old", configMap("ns", "old", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	nothing := func(err error) bool { return err == nil }
	for _, step := range []struct {
		state          State
		create, update func(error) bool
	}{
		{Active, nothing, nothing}, // the fence has another revision
		{Terminating, apierrors.IsForbidden, nothing},
		{Active, nothing, nothing}, // the fence no longer refuses
		{Frozen, apierrors.IsServiceUnavailable, apierrors.IsServiceUnavailable},
		{Terminating, apierrors.IsForbidden, nothing},
		{Gone, apierrors.IsNotFound, apierrors.IsNotFound},
		{Active, nothing, nothing},
	} {
		behind(t, s, "c1", step.state)
		create, update := attempt()
		if !step.create(create) || !step.update(update) {
			t.Errorf("fence %q: create says %v, update %v", step.state, create, update)
		}
		if got, err := s.State(t.Context(), "c1"); err != nil || got != step.state {
			t.Errorf("fence %q: known as %q, %v", step.state, got, err)
		}
		_, err := s.Commit(t.Context(), []Write{{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", fmt.Sprint("by-commit", n), "")}})
		if !step.create(err) {
			t.Errorf("fence %q: commit says %v", step.state, err)
		}
	}
}

// A Commit retries when a fence has changed, as other writes do.
func TestCommitMeetsMovedFence(t *testing.T) {
	s, _ := unfollowed(t)
	create(t, s, "c1")
	w := []Write{{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", "x", "")}}
	behind(t, s, "c1", Active)
	rev, err := s.Commit(t.Context(), w)
	if err != nil {
		t.Fatalf("the fence moved, and allows it: %v", err)
	}
	behind(t, s, "c1", Terminating)
	w[0].Expect = rev
	if _, err = s.Commit(t.Context(), w); err != nil {
		t.Errorf("update in a terminating cluster: %v", err)
	}
	// Of the two writes only the second one creates an object.
	system := Write{Resource: keys.Resource{Root: keys.Custom, Group: "g", Resource: "r"}, Cluster: "c1", Object: widget("ns", "x", "")}
	w[0].Expect, w[0].Delete = s.revisionOf(t, w[0]), true
	if _, err = s.Commit(t.Context(), []Write{w[0], system}); !apierrors.IsForbidden(err) {
		t.Errorf("create beside a delete in a terminating cluster: %v", err)
	}
	behind(t, s, "c1", Active)
	if _, err = s.Commit(t.Context(), nil, Fence{Cluster: "c1", From: Active, State: Frozen}); err != nil {
		t.Errorf("the fence is as expected, if not as known: %v", err)
	}
	if _, err = s.Commit(t.Context(), nil, Fence{Cluster: "c1", From: Active, State: Frozen}); !errors.Is(err, ErrChanged) {
		t.Errorf("the fence is not as expected: %v", err)
	}
	if _, err = s.Commit(t.Context(), nil, Fence{Cluster: "c1", State: Active}); !errors.Is(err, ErrChanged) {
		t.Errorf("a fence that must not exist: %v", err)
	}
}

func (s *Store) revisionOf(t testing.TB, w Write) int64 {
	t.Helper()
	a, err := meta.Accessor(w.Object)
	if err != nil {
		t.Fatal(err)
	}
	_, rev, err := s.Read(t.Context(), w.Resource.Key(w.Cluster, a.GetNamespace(), a.GetName()))
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// Invalid Commits return errors, also if objects are not in the expected state.
func TestCommitRefuses(t *testing.T) {
	s, _ := unfollowed(t)
	create(t, s, "c1", "c2")
	r := keys.NativeResource(configMaps)
	x := Write{Resource: r, Cluster: "c1", Object: configMap("ns", "x", "")}
	rev, err := s.Commit(t.Context(), []Write{x})
	if err != nil {
		t.Fatal(err)
	}
	y := Write{Resource: r, Cluster: "c2", Object: configMap("ns", "y", "")}
	at := func(w Write, rev int64) Write { w.Expect = rev; return w }
	deleted := func(w Write) Write { w.Delete = true; return w }
	says := func(text string) func(error) bool {
		return func(err error) bool { return err != nil && strings.Contains(err.Error(), text) }
	}
	other := Write{Resource: keys.CustomResource(widgets, ""), Cluster: "c1", Object: widget("ns", "beside", "")}
	for name, test := range map[string]struct {
		writes []Write
		fences []Fence
		want   func(error) bool
	}{
		"two keys of a resource": {[]Write{at(x, rev), y}, nil, says("two objects")},
		"two fences":             {nil, []Fence{{Cluster: "c3", State: Active}, {Cluster: "c4", State: Active}}, says("two fences")},
		"exists":                 {[]Write{x, other}, nil, storage.IsExist},
		"conflict":               {[]Write{at(x, rev-1), other}, nil, storage.IsConflict},
		"not found":              {[]Write{at(y, rev), other}, nil, apierrors.IsNotFound},
		"deletes blindly":        {[]Write{deleted(x)}, nil, says("expect")},
		"deletes what is gone":   {[]Write{deleted(at(y, rev)), other}, nil, apierrors.IsNotFound},
		"no such cluster":        {[]Write{{Resource: r, Cluster: "none", Object: configMap("ns", "x", "")}}, nil, apierrors.IsNotFound},
		"malformed cluster":      {[]Write{{Resource: r, Cluster: "c1/ns", Object: configMap("", "x", "")}}, nil, says("malformed")},
		"malformed name":         {[]Write{{Resource: r, Cluster: "c1", Object: configMap("ns", "x/y", "")}}, nil, says("malformed")},
		"malformed fence":        {nil, []Fence{{Cluster: "a/b", State: Active}}, says("malformed")},
		"unknown resource":       {[]Write{{Resource: keys.Resource{Root: keys.Native, Resource: "unknown"}, Cluster: "c1", Object: configMap("ns", "x", "")}}, nil, says("not served")},
	} {
		if _, err := s.Commit(t.Context(), test.writes, test.fences...); !test.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if rev := s.revisionOf(t, other); rev != 0 {
		t.Errorf("a refused transaction wrote its other object at %d", rev)
	}
	if _, _, err := s.Read(t.Context(), r.Key("c1", "ns", "a/b")); err == nil {
		t.Error("read of a malformed key")
	}
}

// In a terminating cluster nothing is created, neither while the fence changes nor later.
func TestTerminateWhileCreating(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	for round := range 10 {
		c := cluster.Name(fmt.Sprint("c", round))
		create(t, s, c)
		var wg sync.WaitGroup
		made := make([][]int64, 4)
		for i := range made {
			wg.Go(func() {
				for n := 0; ; n++ {
					var out corev1.ConfigMap
					name := fmt.Sprint("x", i, "-", n)
					err := cm.Create(in(c), cmRoot+"/ns/"+name, configMap("ns", name, ""), &out, 0)
					if err != nil {
						if !apierrors.IsForbidden(err) {
							t.Errorf("create in a terminating cluster: %v", err)
						}
						return
					}
					rev, _ := storage.APIObjectVersioner{}.ObjectResourceVersion(&out)
					made[i] = append(made[i], int64(rev))
				}
			})
		}
		for s.Feed().Ledger().Of(c)[keys.NativeResource(configMaps)].Objects < 3 {
			if err := s.Feed().WaitFor(t.Context(), s.guard.latest.Load()); err != nil {
				t.Fatal(err)
			}
		}
		end, err := s.Commit(t.Context(), nil, Fence{Cluster: c, From: Active, State: Terminating})
		if err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if last := slices.Max(slices.Concat(made...)); last > end {
			t.Errorf("something was created at %d, after the fence turned at %d", last, end)
		}
	}
}

// Concurrent writers of one object do not lose each other's changes.
func TestConflictingWriters(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", ""), nil, 0); !storage.IsExist(err) {
		t.Errorf("create twice: %v", err)
	}
	const writers, each = 8, 20
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				err := cm.GuaranteedUpdate(in("c1"), cmRoot+"/ns/x", &corev1.ConfigMap{}, false, nil, func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
					next := in.(*corev1.ConfigMap).DeepCopy()
					next.Data["v"] += "."
					return next, nil, nil
				}, nil)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var got corev1.ConfigMap
	if err := cm.Get(in("c1"), cmRoot+"/ns/x", storage.GetOptions{}, &got); err != nil || len(got.Data["v"]) != writers*each {
		t.Errorf("%d of %d changes are left, %v", len(got.Data["v"]), writers*each, err)
	}
}

// fickle is a KV that changes a fence on every read of it.
type fickle struct {
	clientv3.KV
	t *testing.T
	s *Store
	n int
}

func (f *fickle) Txn(ctx context.Context) clientv3.Txn {
	f.n++
	behind(f.t, f.s, "c1", Active)
	return f.KV.Txn(ctx)
}

// A write whose fence changes at every attempt ends with an error to retry, not with an error
// about its object.
func TestRestlessFence(t *testing.T) {
	s, cm := unfollowed(t)
	create(t, s, "c1")
	restless := &fickle{KV: s.guard.kv, t: t, s: s}
	s.guard.kv = restless
	if err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", ""), nil, 0); !apierrors.IsServerTimeout(err) {
		t.Errorf("create: %v", err)
	}
	w := Write{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", "x", "")}
	if _, err := s.Commit(t.Context(), []Write{w}); !apierrors.IsServerTimeout(err) {
		t.Errorf("commit: %v", err)
	}
	if restless.n > 3*attempts { // a failed Commit reads the fence to find the cause
		t.Errorf("%d transactions", restless.n)
	}
}

// The guard can learn of changes of fences in any order.
func TestFencesLearn(t *testing.T) {
	f := newFences()
	expect := func(what string, c cluster.Name, want fence) {
		t.Helper()
		if got, _ := f.get(c); got != want {
			t.Errorf("%s: %s is known as %+v, want %+v", what, c, got, want)
		}
	}
	f.learn("a", fence{10, Active}, 10)
	f.learn("a", fence{20, Terminating}, 20)
	f.learn("a", fence{10, Active}, 15)
	expect("older news", "a", fence{20, Terminating})
	f.learn("a", fence{}, 30)
	f.learn("a", fence{20, Terminating}, 25)
	expect("news from before the end", "a", fence{})
	f.learn("a", fence{40, Active}, 40)
	f.learn("a", fence{}, 35)
	expect("news of an end before it was made again", "a", fence{40, Active})
	f.learn("b", fence{5, Active}, 41)
	expect("another cluster", "b", fence{5, Active})
	f.forget(39)
	expect("changes may have been missed", "b", fence{})
	expect("made later", "a", fence{40, Active})
	f.learn("b", fence{5, Active}, 39)
	expect("as it was read", "b", fence{5, Active})
}

// The write budget limits writes of registries and of the server.
func TestBudgetOfWrites(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1", "c2")
	// The budget is used up an hour from now, so it does not refill during the test.
	if err := s.guard.tenants.AllowAt(time.Now().Add(time.Hour), quota.Write{Cluster: "c1", Bytes: quota.WriteBurst}, 0); err != nil {
		t.Fatal(err)
	}
	err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", ""), nil, 0)
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("create: %v", err)
	}
	w := Write{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", "x", "")}
	if _, err := s.Commit(t.Context(), []Write{w}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("commit: %v", err)
	}
	if err := cm.Create(in("c2"), cmRoot+"/ns/x", configMap("ns", "x", ""), nil, 0); err != nil {
		t.Errorf("another cluster: %v", err)
	}
}

// Clusters that do not exist, or are frozen, accept no writes.
func TestGuardRefuses(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	key := cmRoot + "/default/x"
	err := cm.Create(in("none"), key, configMap("default", "x", ""), nil, 0)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("write to a cluster that does not exist: %v", err)
	}
	create(t, s, "c1")
	if err := cm.Create(in("c1"), key, configMap("default", "x", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "c1", From: Active, State: Terminating}); err != nil {
		t.Fatal(err)
	}
	if err := cm.Create(in("c1"), cmRoot+"/default/y", configMap("default", "y", ""), nil, 0); !apierrors.IsForbidden(err) {
		t.Errorf("create in a terminating cluster: %v", err)
	}
	if err := cm.Delete(in("c1"), key, &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Errorf("delete in a terminating cluster: %v", err)
	}
	if err := cm.Create(in(cluster.All), key, configMap("default", "x", ""), nil, 0); !apierrors.IsBadRequest(err) {
		t.Errorf("create in all clusters: %v", err)
	}
}
