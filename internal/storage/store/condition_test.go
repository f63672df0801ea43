package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/keys"
)

// ground is the key that the conditions in these tests depend on.
var ground = keys.SystemKey("c1", "names", "example.com")

// move changes ground as another process would, and returns its new revision.
func move(t testing.TB, s *Store) int64 {
	t.Helper()
	r, err := s.RawClient().Put(t.Context(), s.prefix+ground.Path(), "moved")
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

func groundAt(t testing.TB, s *Store) int64 {
	t.Helper()
	revision, at, err := s.Revision(t.Context(), ground)
	if err != nil || at < revision {
		t.Fatal(revision, at, err)
	}
	return revision
}

// on returns a context in which writes of config maps depend on ground being at a revision.
// The counter is the number of calls of Renew.
func on(revision int64, advance bool, renew func(context.Context, int64) (int64, error)) (context.Context, *atomic.Int32) {
	var asked atomic.Int32
	return WithCondition(in("c1"), &Condition{
		Of: keys.NativeResource(configMaps), On: ground, Revision: revision, Advance: advance,
		Renew: func(ctx context.Context, now int64) (int64, error) { asked.Add(1); return renew(ctx, now) },
	}), &asked
}

var errDecided = errors.New("decided otherwise")

func refuse(context.Context, int64) (int64, error)     { return 0, errDecided }
func goOn(_ context.Context, now int64) (int64, error) { return now, nil }

// set returns an update function that calls before and then sets the value.
func set(v string, before func()) storage.UpdateFunc {
	return func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before()
		next := in.(*corev1.ConfigMap).DeepCopy()
		next.Data = map[string]string{"v": v}
		return next, nil, nil
	}
}

func nothing() {}

// three returns one write of each kind: a create, an update and a delete.
func three(cm storage.Interface, round int) []func(context.Context) error {
	key := func(name string) string { return cmRoot + "/ns/" + name }
	fresh := fmt.Sprint("new", round)
	return []func(context.Context) error{
		func(ctx context.Context) error { return cm.Create(ctx, key(fresh), configMap("ns", fresh, ""), nil, 0) },
		func(ctx context.Context) error {
			return cm.GuaranteedUpdate(ctx, key("old"), &corev1.ConfigMap{}, false, nil, set(fresh, nothing), nil)
		},
		func(ctx context.Context) error {
			return cm.Delete(ctx, key(fmt.Sprint("doomed", round)), &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		},
	}
}

// An update that changes nothing is no write. Its conditions hold nevertheless.
func TestConditionOfNoChange(t *testing.T) {
	t.Parallel()
	s, cm := prepared(t, 1)
	same := func(ctx context.Context) error {
		return cm.GuaranteedUpdate(ctx, cmRoot+"/ns/old", &corev1.ConfigMap{}, false, nil, func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return in, nil, nil
		}, nil)
	}
	at := groundAt(t, s)
	ctx, asked := on(at, true, refuse)
	if err := same(ctx); err != nil || asked.Load() != 0 || groundAt(t, s) != at {
		t.Errorf("while the condition holds: %v, asked %d times", err, asked.Load())
	}
	move(t, s)
	if err := same(ctx); !errors.Is(err, errDecided) {
		t.Errorf("after it has changed: %v", err)
	}
	ctx, asked = on(at, true, goOn)
	if err := same(ctx); err != nil || asked.Load() != 1 {
		t.Errorf("decided again: %v, asked %d times", err, asked.Load())
	}
}

// prepared returns a store with the objects for the given number of rounds of writes.
func prepared(t *testing.T, rounds int) (*Store, storage.Interface) {
	t.Helper()
	s, cm := unfollowed(t)
	create(t, s, "c1", "c2")
	names := []string{"old"}
	for i := range rounds {
		names = append(names, fmt.Sprint("doomed", i))
	}
	for _, name := range names {
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	return s, cm
}

// A write succeeds while its condition holds, also if the key does not exist. After the key
// has changed, Renew decides again.
func TestCondition(t *testing.T) {
	s, cm := prepared(t, 10)
	round := 0
	each := func(what string, ctx context.Context, asked *atomic.Int32, anew bool, want error) {
		t.Helper()
		for i, write := range three(cm, round) {
			asked.Store(0)
			if err := write(ctx); !errors.Is(err, want) || (want == nil && err != nil) {
				t.Errorf("%s: write %d says %v, want %v", what, i, err, want)
			}
			if got := asked.Load() > 0; got != anew { // called twice if the cached object was outdated
				t.Errorf("%s: write %d was decided anew: %t", what, i, got)
			}
		}
		round++
	}
	ctx, asked := on(0, false, refuse)
	each("no key, as expected", ctx, asked, false, nil)
	first := move(t, s)
	each("a key appeared", ctx, asked, true, errDecided)
	ctx, asked = on(first, false, refuse)
	each("the key as expected", ctx, asked, false, nil)
	move(t, s)
	each("the key has moved", ctx, asked, true, errDecided)
	ctx, asked = on(first, false, goOn)
	each("it has moved, but nothing changes", ctx, asked, true, nil)
	ctx, asked = on(first, false, func(_ context.Context, now int64) (int64, error) {
		if now == 0 {
			return 0, nil
		}
		return 0, fmt.Errorf("the key is at %d", now)
	})
	if _, err := s.RawClient().Delete(t.Context(), s.prefix+ground.Path()); err != nil {
		t.Fatal(err)
	}
	each("the key has gone, but nothing changes", ctx, asked, true, nil)
	if got := groundAt(t, s); got != 0 {
		t.Errorf("writes that only compare have changed the key: it is at %d", got)
	}
}

// A condition has no effect on writes of other resources.
func TestConditionOfOthers(t *testing.T) {
	s, cm := prepared(t, 1)
	ctx := WithCondition(in("c1"), &Condition{Of: keys.CustomResource(widgets, ""), On: ground, Revision: 12345, Advance: true, Renew: refuse})
	for i, write := range three(cm, 0) {
		if err := write(ctx); err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if got := groundAt(t, s); got != 0 {
		t.Errorf("the key was advanced to %d", got)
	}
}

// Each failure has its own error: a failed condition is neither a conflict nor AlreadyExists,
// and a condition that holds hides neither of them.
func TestConditionAndObject(t *testing.T) {
	s, cm := prepared(t, 0)
	held, _ := on(0, true, refuse)
	failed, _ := on(7, true, refuse)
	again := func(ctx context.Context) error {
		return cm.Create(ctx, cmRoot+"/ns/old", configMap("ns", "old", ""), nil, 0)
	}
	if err := again(held); !storage.IsExist(err) {
		t.Errorf("create of what exists, condition held: %v", err)
	}
	if err := again(failed); !errors.Is(err, errDecided) {
		t.Errorf("create of what exists, condition failed: %v", err)
	}
	stale, calls := "1", 0
	err := cm.GuaranteedUpdate(held, cmRoot+"/ns/old", &corev1.ConfigMap{}, false, &storage.Preconditions{ResourceVersion: &stale}, set("x", nothing), nil)
	if !storage.IsInvalidObj(err) {
		t.Errorf("update of an old version, condition held: %v", err)
	}
	// Both the object and the key of the condition change during the update.
	first := move(t, s)
	renewing, asked := on(first, true, goOn)
	err = cm.GuaranteedUpdate(renewing, cmRoot+"/ns/old", &corev1.ConfigMap{}, false, nil, set("second", func() {
		if calls++; calls == 1 {
			move(t, s)
			if err := cm.GuaranteedUpdate(in("c1"), cmRoot+"/ns/old", &corev1.ConfigMap{}, false, nil, set("first", nothing), nil); err != nil {
				t.Error(err)
			}
		}
	}), nil)
	if err != nil || calls != 2 || asked.Load() == 0 {
		t.Errorf("both moved: %v after %d calls, decided anew %d times", err, calls, asked.Load())
	}
	var got corev1.ConfigMap
	if err := cm.Get(in("c1"), cmRoot+"/ns/old", storage.GetOptions{}, &got); err != nil || got.Data["v"] != "second" {
		t.Errorf("there is %v, %v", got.Data, err)
	}
}

// A write whose condition never holds ends with a server timeout after a limited number of
// attempts.
func TestConditionNeverStandsStill(t *testing.T) {
	s, cm := prepared(t, 1)
	ctx, asked := on(0, false, func(_ context.Context, now int64) (int64, error) { return now - 1, nil })
	move(t, s)
	for i, write := range three(cm, 0) {
		asked.Store(0)
		if err := write(ctx); !apierrors.IsServerTimeout(err) {
			t.Errorf("write %d: %v", i, err)
		}
		if asked.Load() > attempts {
			t.Errorf("write %d: %d attempts", i, asked.Load())
		}
	}
}

// Of several concurrent writes with the same advancing condition, one succeeds. The others
// are decided again before they write anything.
func TestConditionAdvances(t *testing.T) {
	s, cm := prepared(t, 0)
	const rounds, writers = 5, 8
	for round := range rounds {
		before := groundAt(t, s)
		var won, lost atomic.Int32
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				ctx, _ := on(before, true, refuse)
				name := fmt.Sprint("w", round, "-", i)
				switch err := cm.Create(ctx, cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); {
				case err == nil:
					won.Add(1)
				case errors.Is(err, errDecided):
					lost.Add(1)
					if err := cm.Get(in("c1"), cmRoot+"/ns/"+name, storage.GetOptions{}, &corev1.ConfigMap{}); !storage.IsNotFound(err) {
						t.Errorf("a loser is written: %v", err)
					}
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != writers-1 {
			t.Errorf("%d won and %d lost", won.Load(), lost.Load())
		}
		if now := groundAt(t, s); now <= before {
			t.Errorf("the key was not advanced: at %d, before %d", now, before)
		}
	}
	// A write that fails because of its object does not advance the key.
	before := groundAt(t, s)
	ctx, _ := on(before, true, refuse)
	if err := cm.Create(ctx, cmRoot+"/ns/old", configMap("ns", "old", ""), nil, 0); !storage.IsExist(err) {
		t.Error(err)
	}
	if now := groundAt(t, s); now != before {
		t.Errorf("a write that failed moved the key from %d to %d", before, now)
	}
}

// The error of a fence takes precedence over that of a condition. If both have changed, both
// are checked again.
func TestConditionAndFence(t *testing.T) {
	s, cm := prepared(t, 10)
	move(t, s)
	for round, step := range []struct {
		name           string
		state          State
		move           bool
		renew          func(context.Context, int64) (int64, error)
		create, update func(error) bool
	}{
		{"fence at another revision", Active, false, refuse, isNil, isNil},
		{"both moved", Active, true, goOn, isNil, isNil},
		{"both moved, and it is decided otherwise", Active, true, refuse, isDecided, isDecided},
		{"ending", Terminating, false, refuse, apierrors.IsForbidden, isNil},
		{"ending, and moved", Terminating, true, goOn, apierrors.IsForbidden, isNil},
		{"frozen", Frozen, true, goOn, apierrors.IsServiceUnavailable, apierrors.IsServiceUnavailable},
		{"gone", Gone, true, goOn, apierrors.IsNotFound, apierrors.IsNotFound},
	} {
		for i, write := range three(cm, round) {
			revision := groundAt(t, s)
			ctx, _ := on(revision, false, step.renew)
			if behind(t, s, "c1", step.state); step.move {
				move(t, s)
			}
			want := step.update
			if i == 0 {
				want = step.create
			}
			// A create that this process can refuse from its memory does not call Renew.
			if err := write(ctx); !want(err) && (i != 0 || !step.create(err)) {
				t.Errorf("%s: write %d says %v", step.name, i, err)
			}
		}
	}
}

func isNil(err error) bool     { return err == nil }
func isDecided(err error) bool { return errors.Is(err, errDecided) }

// Revision refuses invalid keys. Equal keys of two clusters are independent.
func TestRevision(t *testing.T) {
	s, _ := prepared(t, 0)
	for _, k := range []keys.Key{keys.SystemKey("c1", "names", ""), keys.SystemKey("c1", "names", "a/b"), keys.SystemKey("", "names", "a")} {
		if _, _, err := s.Revision(t.Context(), k); err == nil {
			t.Errorf("%v has a revision", k)
		}
	}
	want := move(t, s)
	if got := groundAt(t, s); got != want {
		t.Errorf("at %d, want %d", got, want)
	}
	if got, _, err := s.Revision(t.Context(), keys.SystemKey("c2", "names", "example.com")); got != 0 || err != nil {
		t.Errorf("in another cluster %d, %v", got, err)
	}
	resp, err := s.RawClient().Get(t.Context(), s.prefix+"/s/core/names/", clientv3.WithPrefix())
	if err != nil || resp.Count != 1 {
		t.Errorf("%d keys, %v", resp.Count, err)
	}
}

// A write can have several conditions. Each that fails is decided again, and one that is decided
// otherwise fails the write.
func TestSeveralConditions(t *testing.T) {
	s, cm := prepared(t, 4)
	second := keys.SystemKey("c1", "names", "example.org")
	condition := func(key keys.Key, revision int64, renew func(context.Context, int64) (int64, error)) *Condition {
		return &Condition{Of: keys.NativeResource(configMaps), On: key, Revision: revision, Renew: renew}
	}
	first := move(t, s)
	for round, c := range []struct {
		what      string
		on, other *Condition
		want      error
	}{
		{"both hold", condition(ground, first, refuse), condition(second, 0, refuse), nil},
		{"one fails", condition(ground, first-1, refuse), condition(second, 0, refuse), errDecided},
		{"the other fails", condition(ground, first, refuse), condition(second, 7, refuse), errDecided},
		{"both fail and are renewed", condition(ground, first-1, goOn), condition(second, 7, goOn), nil},
	} {
		for i, write := range three(cm, round) {
			if err := write(WithCondition(WithCondition(in("c1"), c.on), c.other)); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%s: write %d says %v, want %v", c.what, i, err, c.want)
			}
		}
	}
}
