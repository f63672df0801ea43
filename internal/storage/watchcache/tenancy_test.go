package watchcache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// Many clusters in one store behave like separate stores. The test makes random changes with
// equal names in all clusters, next to values that cannot be decoded. Each cluster shows its
// own changes only.
func TestTenancy(t *testing.T) {
	for _, f := range []flavour{natives(), customs(), restless()} {
		t.Run(f.name, func(t *testing.T) {
			for i, seed := range seeds(t) {
				var encryption value.ResourceTransformers
				if i%2 == 0 {
					encryption = storetest.Encrypting(t, storetest.AESGCM("one"), storetest.Plain)
				}
				tenancy(t, f, seed, encryption)
			}
		})
	}
}

func tenancy(t *testing.T, f flavour, seed uint64, encryption value.ResourceTransformers) {
	w := &world{TB: t, flavour: f, seed: seed, rand: rand.New(rand.NewPCG(seed, seed)), dir: t.TempDir(), encryption: encryption, epoch: values.Epoch(seed % 3)}
	w.start()
	defer func() { w.ended() }()
	for _, c := range []cluster.Name{"c1", "c10", "c1-a", "c2"} { // some names are prefixes of others, also in the key order of etcd
		create(t, w.store, c)
		for _, id := range w.identities {
			w.spaces = append(w.spaces, space{c, id})
		}
	}
	create(t, w.store, "bad1", "bad2", "forged")
	watches := make([]*follow, 6)
	for step := range 400 {
		switch step {
		case 100, 300:
			w.spoil()
		case 200, 350:
			if n := w.store.customs.count.warmings.Load(); w.restless && step == 200 && n < 2 {
				w.failf("caches began %d times", n)
			}
			w.ended()
			w.start()
		}
		if w.restless {
			w.shift()
		}
		i := w.rand.IntN(len(watches))
		switch n := w.rand.IntN(20); {
		case n < 12:
			w.write(w.spaces[w.rand.IntN(len(w.spaces))], object{fmt.Sprint("ns", w.rand.IntN(2)), fmt.Sprint("o", w.rand.IntN(5))})
		case n < 17:
			w.read()
		case watches[i] == nil:
			watches[i] = w.newFollow()
		default:
			watches[i].catchUp()
		}
	}
	for _, f := range watches {
		if f != nil {
			f.catchUp()
			f.stop()
		}
	}
	w.neighbours()
}

// shift randomly stops idle caches, or waits until those that have started are filled, or
// does nothing.
func (w *world) shift() {
	all := w.store.customs
	switch w.rand.IntN(20) {
	case 0:
		all.sweep()
	case 1:
		all.mu.Lock()
		warm := slices.Collect(maps.Values(all.warm))
		all.mu.Unlock()
		for _, c := range warm {
			eventually(w, "a cache is filled", func() bool { return c.ReadinessCheck() == nil })
		}
	}
}

// write makes a random change to one object.
func (w *world) write(s space, at object) {
	old, exists := w.now(s)[at]
	r := row{value: fmt.Sprint(w.rand.Uint32()), red: w.rand.IntN(2) == 0}
	out := w.empty()
	switch w.rand.IntN(4) {
	case 0:
		err := w.api().Create(s.context(), w.key(at), w.object(at, r), out, 0)
		if exists && storage.IsExist(err) {
			return
		}
		w.ok(err, "create %v in %v (exists: %v)", at, s, exists)
		w.record(s, at, r, false, out)
	case 1:
		err := w.api().Delete(s.context(), w.key(at), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		if !exists && storage.IsNotFound(err) {
			return
		}
		w.ok(err, "delete %v in %v (exists: %v)", at, s, exists)
		old.rev = w.revision(out)
		w.record(s, at, old, true, out)
	default:
		w.update(s, at, r, w.rand.IntN(2) == 0)
	}
}

func (w *world) update(s space, at object, r row, upsert bool) {
	old, exists := w.now(s)[at]
	same := exists && w.rand.IntN(5) == 0
	if same {
		r = old
	}
	out := w.empty()
	err := w.api().GuaranteedUpdate(s.context(), w.key(at), out, upsert, nil, func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if rev := w.revisionOrNone(in); rev != 0 && rev != old.rev {
			return nil, nil, storage.NewResourceVersionConflictsError(w.key(at), rev) // the update reads again
		}
		next := w.object(at, r)
		a, err := meta.Accessor(next)
		if err != nil {
			return nil, nil, err
		}
		a.SetResourceVersion(fmt.Sprint(old.rev))
		if old.rev == 0 {
			a.SetResourceVersion("")
		}
		return next, nil, nil
	}, nil)
	switch {
	case !exists && !upsert && storage.IsNotFound(err):
	case same:
		w.ok(err, "change nothing of %v in %v", at, s)
		w.check(s, at, old, out)
	default:
		w.ok(err, "update %v in %v (exists: %v)", at, s, exists)
		w.record(s, at, r, false, out)
	}
}

func (w *world) revisionOrNone(o runtime.Object) int64 {
	rv, _ := meta.NewAccessor().ResourceVersion(o)
	rev, _ := strconv.ParseInt(rv, 10, 64)
	return rev
}

// read makes a random read in a space.
func (w *world) read() {
	s := w.spaces[w.rand.IntN(len(w.spaces))]
	c := choice{namespace: []string{"", "ns0", "ns1"}[w.rand.IntN(3)], red: w.rand.IntN(3) == 0}
	switch w.rand.IntN(6) {
	case 0:
		w.get(s, object{fmt.Sprint("ns", w.rand.IntN(2)), fmt.Sprint("o", w.rand.IntN(5))})
	case 1:
		w.pages(s, c, int64(1+w.rand.IntN(3)))
	case 2:
		w.everywhere(c)
	case 3:
		o := c.options("0")
		w.list(s, c, o, 0)
	case 4:
		last := w.lastOf(s)
		o := c.options(fmt.Sprint(last))
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
		if w.rand.IntN(2) == 0 {
			o.ResourceVersionMatch = metav1.ResourceVersionMatchExact
		}
		if last > 0 {
			w.list(s, c, o, last)
		}
	default:
		w.list(s, c, c.options(""), w.lastOf(s))
	}
}

func (w *world) get(s space, at object) {
	out := w.empty()
	want, exists := w.now(s)[at]
	err := w.api().Get(s.context(), w.key(at), storage.GetOptions{}, out)
	if !exists && storage.IsNotFound(err) {
		return
	}
	w.ok(err, "get %v in %v (exists: %v)", at, s, exists)
	w.check(s, at, want, out)
}

// list checks that a list equals the state at its revision, which must be at least least.
func (w *world) list(s space, c choice, o storage.ListOptions, least int64) {
	ctx, key := w.request(s, c)
	list := w.list_()
	w.ok(w.api().GetList(ctx, key, o, list), "list %+v in %v", o, s)
	rev := w.revision(list)
	if rev < least {
		w.failf("list of %v at %q has revision %d, want at least %d", s, o.ResourceVersion, rev, least)
	}
	w.same(fmt.Sprintf("list of %v, %+v, at %q", s, c, o.ResourceVersion), w.contents(s, list), filtered(w.at(s, rev), c))
}

func (w *world) list_() runtime.Object { return w.flavour.list() }

// pages reads a list in pages, with changes between them.
func (w *world) pages(s space, c choice, size int64) {
	ctx, key := w.request(s, c)
	o := c.options("")
	o.Predicate.Limit = size
	got, rev := map[object]row{}, int64(0)
	var want map[object]row
	for page := 0; page == 0 || o.Predicate.Continue != ""; page++ {
		list := w.list_()
		w.ok(w.api().GetList(ctx, key, o, list), "page %d of %v", page, s)
		m, err := meta.ListAccessor(list)
		w.ok(err, "page %d", page)
		if page == 0 {
			rev = w.revision(list)
			want = filtered(w.at(s, rev), c)
		}
		for at, r := range w.contents(s, list) {
			got[at] = r
		}
		if left := m.GetRemainingItemCount(); left != nil && *left != int64(len(want)-len(got)) {
			w.failf("page %d of %v, %+v: %d of %d seen, and %d are said to remain", page, s, c, len(got), len(want), *left)
		}
		o.Predicate.Continue = m.GetContinue()
		w.write(w.spaces[w.rand.IntN(len(w.spaces))], object{fmt.Sprint("ns", w.rand.IntN(2)), fmt.Sprint("o", w.rand.IntN(5))})
	}
	w.same(fmt.Sprintf("pages of %v, %+v", s, c), got, want)
}

// everywhere lists all clusters together.
func (w *world) everywhere(c choice) {
	identity := w.identities[w.rand.IntN(len(w.identities))]
	ctx, key := w.request(space{cluster.All, identity}, c)
	list := w.list_()
	w.ok(w.api().GetList(ctx, key, c.options(""), list), "list everywhere")
	rev := w.revision(list)
	byCluster := map[cluster.Name][]runtime.Object{}
	w.ok(meta.EachListItem(list, func(o runtime.Object) error {
		a, err := meta.Accessor(o)
		if err == nil {
			byCluster[cluster.Of(a)] = append(byCluster[cluster.Of(a)], o)
		}
		return err
	}), "list everywhere")
	for _, s := range w.spaces {
		if s.identity != identity {
			continue
		}
		part := w.list_()
		w.ok(meta.SetList(part, byCluster[s.cluster]), "split")
		w.same(fmt.Sprintf("%v in the list of all clusters", s), w.contents(s, part), filtered(w.at(s, rev), c))
		delete(byCluster, s.cluster)
	}
	delete(byCluster, "forged")
	if len(byCluster) > 0 {
		w.failf("the list of all clusters has %v", byCluster)
	}
}

// neighbours checks the reads of clusters that contain values that cannot be decoded.
func (w *world) neighbours() {
	for c, name := range map[cluster.Name]string{"bad1": "o0", "bad2": "o2"} {
		s := space{c, w.identities[0]}
		ctx, key := w.request(s, choice{})
		err := w.api().GetList(ctx, key, everything(""), w.list_())
		if err == nil || !strings.Contains(err.Error(), name) {
			w.failf("list of %v does not name what is bad: %v", s, err)
		}
		err = w.api().Get(ctx, w.key(object{"ns0", name}), storage.GetOptions{}, w.empty())
		if err == nil || storage.IsNotFound(err) || !strings.Contains(err.Error(), name) {
			w.failf("get in %v does not say what is bad: %v", s, err)
		}
	}
	forged := space{"forged", w.identities[0]}
	list := w.list_()
	ctx, key := w.request(forged, choice{})
	w.ok(w.api().GetList(ctx, key, everything(""), list), "list of %v", forged)
	if got := w.contents(forged, list); len(got) != 1 {
		w.failf("list of %v: %v", forged, got)
	}
}

// A follow is a client that lists, watches and resumes its watch.
type follow struct {
	*world
	space  space
	choice choice
	api    storage.Interface
	store_ *served // the store that serves the watch
	watch  watch.Interface
	state  map[object]row
	rev    int64 // revision to resume from
}

func (w *world) newFollow() *follow {
	s := w.spaces[w.rand.IntN(len(w.spaces))]
	c := choice{namespace: []string{"", "ns0"}[w.rand.IntN(2)], red: w.rand.IntN(3) == 0}
	return &follow{world: w, space: s, choice: c}
}

func (f *follow) stop() {
	if f.watch != nil {
		f.watch.Stop()
		f.watch = nil
	}
}

// begin starts with a list or, at random, with a watch that begins with one.
func (f *follow) begin() {
	f.api, f.state = f.world.api(), map[object]row{}
	if f.rand.IntN(2) == 0 {
		f.relist()
	}
}

func (f *follow) relist() {
	ctx, key := f.request(f.space, f.choice)
	list := f.list_()
	f.ok(f.api.GetList(ctx, key, f.choice.options(""), list), "list to watch %v", f.space)
	f.state, f.rev = f.contents(f.space, list), f.revision(list)
}

func (f *follow) open() {
	ctx, key := f.request(f.space, f.choice)
	o := f.choice.options(fmt.Sprint(f.rev))
	o.Predicate.AllowWatchBookmarks = true
	var err error
	f.watch, err = f.api.Watch(ctx, key, o)
	f.ok(err, "watch %v from %d", f.space, f.rev)
}

// catchUp resumes the watch if it has ended, and reads it up to a new object.
func (f *follow) catchUp() {
	if f.watch == nil || f.store_ != f.store || f.rand.IntN(4) == 0 {
		f.stop()
		if f.state == nil {
			f.begin()
		}
		f.api, f.store_ = f.world.api(), f.store
		f.open()
		f.readToEnd() // the watch may still send its initial objects
	}
	f.readToEnd()
	f.same(fmt.Sprintf("watch of %v, %+v", f.space, f.choice), f.state, filtered(f.now(f.space), f.choice))
}

func (f *follow) readToEnd() {
	end := object{"ns0", fmt.Sprint("end", f.rand.Uint64())}
	out, r := f.empty(), row{value: "end", red: true}
	f.ok(f.api.Create(f.space.context(), f.key(end), f.object(end, r), out, 0), "create the end")
	f.record(f.space, end, r, false, out)
	for f.state[end].rev == 0 {
		select {
		case e, ok := <-f.watch.ResultChan():
			if !ok { // it may have ended among its initial objects
				f.relist()
				f.open()
				continue
			}
			f.take(e)
		case <-time.After(storetest.Patience):
			f.failf("watch of %v never saw %v", f.space, end)
		}
	}
}

func (f *follow) take(e watch.Event) {
	if status, ok := e.Object.(*metav1.Status); ok {
		if !apierrors.IsResourceExpired(apierrors.FromObject(status)) && !apierrors.IsGone(apierrors.FromObject(status)) {
			f.failf("watch of %v from %d: %v", f.space, f.rev, status)
		}
		f.stop()
		f.relist()
		f.open()
		return
	}
	e.Object = bare(e.Object)
	a, err := meta.Accessor(e.Object)
	f.ok(err, "event")
	f.rev = max(f.rev, f.revision(e.Object))
	if e.Type == watch.Bookmark {
		return
	}
	at := object{a.GetNamespace(), a.GetName()}
	got := row{f.value(e.Object), a.GetLabels()["colour"] == "red", f.revision(e.Object)}
	if cluster.Of(a) != f.space.cluster {
		f.failf("watch of %v: %s of %v in %s", f.space, e.Type, at, cluster.Of(a))
	}
	known := slices.ContainsFunc(f.log, func(c change) bool { return c.space == f.space && c.at == at && c.row.rev == got.rev })
	if !known {
		f.failf("watch of %v: %s of %v at %d, which never was", f.space, e.Type, at, got.rev)
	}
	if delete(f.state, at); e.Type != watch.Deleted {
		f.state[at] = got
	}
}
