package watchcache

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// doors is a follower with the set of clusters that have an object called door.
type doors struct {
	*membership.Set
	building map[cluster.Name]int64
	last     int64
	sparse   bool
}

func (d *doors) Reset() { d.building = map[cluster.Name]int64{} }

func (d *doors) Done() {
	d.Replace(d.building, d.last)
	d.building = nil
}

func (d *doors) Apply(e feed.Event) {
	if e.Key.Name != "door" {
		return
	}
	d.last = max(d.last, e.Revision)
	switch {
	case d.building == nil:
		d.Put(e.Key.Cluster, !e.Deleted(), e.Revision)
	case e.Deleted():
		delete(d.building, e.Key.Cluster)
	default:
		d.building[e.Key.Cluster] = e.Revision
	}
}

// inScopes runs a test in worlds whose clusters enter and leave a scope.
func inScopes(t *testing.T, test func(*testing.T, *world, *doors)) {
	for name, c := range map[string]struct {
		flavour
		sparse bool
	}{
		"custom resources": {customs(), false}, "some custom resources": {customs(), true}, "native resources": {natives(), true},
	} {
		t.Run(name, func(t *testing.T) {
			w, d := scopedWorld(t, c.flavour)
			d.sparse = c.sparse
			test(t, w, d)
		})
	}
}

// scopedWorld returns a world whose clusters enter and leave a scope.
func scopedWorld(t *testing.T, of flavour) (*world, *doors) {
	w := &world{TB: t, flavour: of, dir: t.TempDir()}
	s := serve(t, here(store.Options{Dir: w.dir, Version: "1.36", NoSync: true}))
	t.Cleanup(s.Close)
	d := &doors{Set: membership.NewSet(0)}
	s.Feed().Follow(d)
	w.store, w.apis = s, w.storages(w, s)
	w.ok(s.Feed().Start(t.Context()), "start the feed")
	return w, d
}

func (d *doors) context() context.Context {
	return registry.WithScope(in(cluster.All), registry.Scope{Set: d.Set, Sparse: d.sparse})
}

func (w *world) erase(c cluster.Name, at object) error {
	return w.apis[0].Delete(in(c), w.key(at), w.empty(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
}

// A watch within a scope delivers the objects of a cluster that enters as added, and those of one
// that leaves as deleted. In between it delivers only changes in members.
func TestClustersEnterAndLeaveAWatch(t *testing.T) { inScopes(t, clustersEnterAndLeave) }

func clustersEnterAndLeave(t *testing.T, w *world, d *doors) {
	create(t, w.store, "c1", "c2")
	w.put(space{cluster: "c1"}, object{"ns", "a"}, "")
	w.put(space{cluster: "c2"}, object{"ns", "a"}, "")
	begin := fmt.Sprint(w.store.Latest())
	watching, err := w.apis[0].Watch(d.context(), w.root, everything(begin))
	w.ok(err, "watch")
	defer watching.Stop()
	w.put(space{cluster: "c1"}, object{"ns", "outside"}, "")
	w.put(space{cluster: "c1"}, object{"ns", "door"}, "")
	expect(t, watching, "ADDED c1/a", "ADDED c1/outside", "ADDED c1/door") // the latest one last
	w.put(space{cluster: "c1"}, object{"ns", "b"}, "")
	w.put(space{cluster: "c2"}, object{"ns", "door"}, "")
	expect(t, watching, "ADDED c1/b", "ADDED c2/a", "ADDED c2/door")
	w.ok(w.erase("c1", object{"ns", "a"}), "delete")
	w.ok(w.erase("c1", object{"ns", "door"}), "delete")
	expect(t, watching, "DELETED c1/a", "DELETED c1/b")
	last := next(t, watching)
	if named(last) != "DELETED c1/door" {
		t.Errorf("event: %s", named(last))
	}
	expect(t, watching, "DELETED c1/outside")
	w.put(space{cluster: "c1"}, object{"ns", "unseen"}, "")
	w.put(space{cluster: "c2"}, object{"ns", "seen"}, "")
	expect(t, watching, "ADDED c2/seen")

	// A watch can resume from before the changes, and from after them.
	again, err := w.apis[0].Watch(d.context(), w.root, everything(begin))
	w.ok(err, "watch")
	defer again.Stop()
	if !d.sparse { // else nothing but the names of a cluster that has left
		expect(t, again, "ADDED c1/a", "ADDED c1/outside", "ADDED c1/door", "ADDED c1/b")
	}
	expect(t, again, "ADDED c2/a", "ADDED c2/door", "DELETED c1/a", "DELETED c1/b", "DELETED c1/door", "DELETED c1/outside", "ADDED c2/seen")
	// A reader that stopped within the events of a cluster that leaves gets them again.
	part, err := w.apis[0].Watch(d.context(), w.root, everything(fmt.Sprint(w.revision(last.Object))))
	w.ok(err, "watch")
	defer part.Stop()
	expect(t, part, "DELETED c1/b", "DELETED c1/door", "DELETED c1/outside", "ADDED c2/seen")

	// A list of the past has nothing of a cluster that has left since.
	past := everything(fmt.Sprint(w.revision(last.Object)))
	past.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	if got, err := w.listed(d.context(), w.root, past); err != nil || fmt.Sprint(got) != "[c2/a c2/door]" {
		t.Errorf("a list of the past: %v, %v", got, err)
	}

	// A rebuilt set does not know what changed: clients list again.
	d.Replace(map[cluster.Name]int64{"c2": 1}, w.store.Latest())
	if e := next(t, watching); !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("after a rebuild: %v", e)
	}
	o := everything("")
	o.Predicate.Limit = 1
	if got, err := w.listed(d.context(), w.root, o); err != nil || fmt.Sprint(got) != "[c2/a c2/door c2/seen]" {
		t.Errorf("a list with a limit: %v, %v", got, err)
	}
	o.Predicate.Continue = "token"
	if _, err := w.listed(d.context(), w.root, o); !apierrors.IsBadRequest(err) {
		t.Errorf("a list with a token: %v", err)
	}
}

// A watch that resumes from a revision before the history in memory delivers a change of its scope
// without a change of an object, also if etcd reports no progress by itself.
func TestAScopeChangesAfterAWatchResumes(t *testing.T) {
	for name, c := range map[string]struct {
		of, doors flavour
		sparse    bool
	}{
		"custom resources": {customs(), natives(), false}, "some custom resources": {customs(), natives(), true}, "native resources": {natives(), customs(), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, all := several(t, 1, etcdtest.Options{})
			s, d := all[0], &doors{Set: membership.NewSet(0), sparse: c.sparse}
			s.Feed().Follow(d)
			w, doors := &world{TB: t, flavour: c.of, store: s}, &world{TB: t, flavour: c.doors, store: s}
			w.apis, doors.apis = w.storages(t, s), doors.storages(t, s)
			w.ok(s.Feed().Start(t.Context()), "start the feed")
			create(t, s, "c1", "c2")
			w.put(space{cluster: "c1"}, object{"ns", "a"}, "")
			w.put(space{cluster: "c2"}, object{"ns", "a"}, "")
			doors.put(space{cluster: "c1"}, object{"ns", "door"}, "")
			begin := fmt.Sprint(s.Latest())
			doors.put(space{cluster: "c2"}, object{"ns", "other"}, "")
			w.ok(s.Feed().WaitFor(t.Context(), s.Latest()), "wait")
			s.Feed().Forget(s.Latest())

			watching, err := w.apis[0].Watch(d.context(), w.root, everything(begin))
			w.ok(err, "watch")
			defer watching.Stop()
			w.ok(doors.erase("c1", object{"ns", "door"}), "delete")
			expect(t, watching, "DELETED c1/a")
			doors.put(space{cluster: "c2"}, object{"ns", "door"}, "")
			expect(t, watching, "ADDED c2/a")
		})
	}
}

// Changes in clusters outside of a sparse scope do not end a watch that nobody reads meanwhile.
func TestOthersDoNotFillAWatch(t *testing.T) {
	w, d := scopedWorld(t, customs())
	d.sparse = true
	create(t, w.store, "c1", "other")
	w.put(space{cluster: "c1"}, object{"ns", "door"}, "")
	watching, err := w.apis[0].Watch(d.context(), w.root, everything(fmt.Sprint(w.store.Latest())))
	w.ok(err, "watch")
	defer watching.Stop()
	w.put(space{cluster: "c1"}, object{"ns", "a"}, "") // which nobody reads yet
	for i := range feed.MaxPending + 10 {
		w.put(space{cluster: "other"}, object{"ns", fmt.Sprint(i)}, "")
	}
	w.put(space{cluster: "c1"}, object{"ns", "b"}, "")
	expect(t, watching, "ADDED c1/a", "ADDED c1/b")
}

// A reader that lists, watches, and resumes anywhere has the objects of the members in the end.
func TestReadersOfAScope(t *testing.T) { inScopes(t, readersOfAScope) }

func readersOfAScope(t *testing.T, w *world, d *doors) {
	clusters := []cluster.Name{"c1", "c2", "c3"}
	create(t, w.store, clusters...)
	finish := make(chan struct{})
	readers := make([]*scopeReader, 4)
	done := make(chan error)
	for i := range readers {
		readers[i] = &scopeReader{w: w, d: d, has: map[string]bool{}}
		go func() { done <- readers[i].run(t.Context(), finish) }()
	}
	exists := map[string]bool{}
	for range 600 {
		c, at := clusters[rand.IntN(len(clusters))], object{"ns", []string{"a", "b", "door"}[rand.IntN(3)]}
		id := string(c) + "/" + at.name
		if exists[id] {
			w.ok(w.erase(c, at), "delete")
		} else {
			w.put(space{cluster: c}, at, "")
		}
		exists[id] = !exists[id]
	}
	w.put(space{cluster: "c1"}, object{"ns", "last"}, "")
	if !exists["c1/door"] {
		w.put(space{cluster: "c1"}, object{"ns", "door"}, "")
	}
	close(finish)
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	want, err := w.listed(d.context(), w.root, everything(""))
	w.ok(err, "list")
	for _, r := range readers {
		if got := map[string]bool(r.has); len(got) != len(want) {
			t.Errorf("a reader has %v, want %v", got, want)
		}
		for _, name := range want {
			if !r.has[name] {
				t.Errorf("a reader lacks %s", name)
			}
		}
	}
}

// A scopeReader keeps the objects of a scope as a client does.
type scopeReader struct {
	w   *world
	d   *doors
	has map[string]bool
}

// run reads until finish is closed and the object last has arrived.
func (r *scopeReader) run(ctx context.Context, finish <-chan struct{}) error {
	rev := ""
	for {
		if rev == "" {
			list := r.w.flavour.list()
			if err := r.w.apis[0].GetList(r.d.context(), r.w.root, everything(""), list); err != nil {
				return err
			}
			clear(r.has)
			if err := meta.EachListItem(list, func(o runtime.Object) error { r.has[identify(o)] = true; return nil }); err != nil {
				return err
			}
			rev, _ = meta.NewAccessor().ResourceVersion(list)
		}
		next, ended, err := r.watch(ctx, rev, finish)
		if err != nil || ended {
			return err
		}
		rev = next
	}
}

func identify(o runtime.Object) string {
	a, _ := meta.Accessor(o)
	return string(cluster.Of(a)) + "/" + a.GetName()
}

// watch reads some events, and returns the revision to resume from, empty to list again.
func (r *scopeReader) watch(ctx context.Context, rev string, finish <-chan struct{}) (next string, ended bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching, err := r.w.apis[0].Watch(registry.WithScope(cluster.With(ctx, cluster.All), registry.Scope{Set: r.d.Set, Sparse: r.d.sparse}), r.w.root, everything(rev))
	if err != nil {
		return "", false, err
	}
	defer watching.Stop()
	for n := 1 + rand.IntN(20); n > 0; n-- {
		if finish == nil && r.has["c1/last"] && r.has["c1/door"] {
			return "", true, nil
		}
		var e watch.Event
		select {
		case <-finish:
			finish, n = nil, math.MaxInt
			continue
		case <-time.After(storetest.Patience):
			return "", false, fmt.Errorf("the watch sends no more to a reader that has %v", r.has)
		case event, ok := <-watching.ResultChan():
			if !ok {
				return rev, false, nil
			}
			e = event
		}
		if e.Type == watch.Error {
			if err := apierrors.FromObject(e.Object); !apierrors.IsResourceExpired(err) {
				return "", false, err
			}
			return "", false, nil
		}
		if rev, err = meta.NewAccessor().ResourceVersion(e.Object); err != nil { // as clients do, also if it is older
			return "", false, err
		}
		if id := identify(e.Object); e.Type == watch.Deleted {
			delete(r.has, id)
		} else {
			r.has[id] = true
		}
	}
	return rev, false, nil
}
