package watchcache

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/watches"
)

// forgets empties the memory of the feed, so that watches read past events from etcd.
func (w *world) forgets() { w.store.Feed().Forget(w.store.Latest()) }

func (w *world) remove(at object) int64 {
	w.Helper()
	out := w.empty()
	w.ok(w.apis[0].Delete(in("c1"), w.key(at), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}), "delete %v", at)
	return w.revision(out)
}

func (w *world) open_(c cluster.Name, o storage.ListOptions) watch.Interface {
	w.Helper()
	watching, err := w.apis[0].Watch(in(c), w.root, o)
	w.ok(err, "watch")
	return watching
}

// A watch can resume at any revision that etcd has, from the memory of the feed or from etcd.
// At a compacted revision it gets an expired error.
func TestResumeCustomWatch(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1", "c2")
	begin := w.store.Latest()
	var want []string
	revs := []int64{begin}
	for i := range 5 {
		at := object{"ns", fmt.Sprint("o", i)}
		revs = append(revs, w.revision(w.put(space{cluster: "c1"}, at, "")))
		w.put(space{cluster: "c2"}, at, "")
		want = append(want, "ADDED c1/"+at.name)
	}
	revs, want = append(revs, w.remove(object{"ns", "o0"})), append(want, "DELETED c1/o0")
	storetest.CatchUp(t, w.store)
	for _, from := range []string{"memory", "both", "history"} {
		var open []watch.Interface
		for i, rev := range revs {
			switch from {
			case "both":
				w.store.Feed().Forget(revs[i/2])
			case "history":
				w.forgets()
			}
			open = append(open, w.open_("c1", everything(fmt.Sprint(rev))))
		}
		at := object{"ns", from}
		w.put(space{cluster: "c1"}, at, "")
		w.remove(at)
		now := []string{"ADDED c1/" + from, "DELETED c1/" + from}
		for i, watching := range open {
			expect(t, watching, slices.Concat(want[i:], now)...)
			watching.Stop()
		}
		want = append(want, now...)
	}
	_, err := w.store.RawClient().Compact(t.Context(), w.store.Latest(), clientv3.WithCompactPhysical())
	w.ok(err, "compact")
	storetest.CatchUp(t, w.store)
	w.forgets()
	e := next(t, w.open_("c1", everything(fmt.Sprint(begin))))
	if !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("a watch from what is compacted: %v", e)
	}
}

// A client that reads past events slowly gets all of them.
func TestSlowReaderOfHistory(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	begin := w.store.Latest()
	for i := range 5 {
		w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, "")
	}
	storetest.CatchUp(t, w.store)
	w.forgets()
	watching := w.open_("c1", everything(fmt.Sprint(begin)))
	defer watching.Stop()
	for i := range 5 {
		if i < 2 {
			<-time.After(watches.SlowReader + watches.SlowReader/2) // SlowReader is measured in real time
		}
		expect(t, watching, fmt.Sprint("ADDED c1/o", i))
	}
}

// A custom watch that is not read ends, and can be resumed after its last event.
func TestSlowCustomWatch(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	slow := w.open_("c1", everything(fmt.Sprint(w.store.Latest())))
	defer slow.Stop()
	const n = feed.MaxPending + 100
	for i := range n {
		w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, "")
	}
	storetest.CatchUp(t, w.store)
	got, last := 0, int64(0)
	for e := range slow.ResultChan() {
		got, last = got+1, w.revision(e.Object)
	}
	if got < feed.MaxPending || got >= n {
		t.Errorf("a watch that was not read got %d of %d events", got, n)
	}
	resumed := w.open_("c1", everything(fmt.Sprint(last)))
	defer resumed.Stop()
	for ; got < n; got++ {
		expect(t, resumed, fmt.Sprint("ADDED c1/o", got))
	}
}

// A watch can begin with the existing objects and a bookmark after them, or without them at
// the current revision. Cold and warm resources behave alike.
func TestInitialEvents(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	for i := range watches.ReplayPage + 10 { // more than a page
		w.put(space{cluster: "c1"}, object{"ns", fmt.Sprintf("o%04d", i)}, "")
	}
	last := w.store.Latest()
	yes, no := true, false
	for _, form := range []string{"cold", "warm"} {
		if form == "warm" {
			defer w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
		}
		for _, rv := range []string{"", "0", fmt.Sprint(last)} {
			w.listIn("c1", "") // waits until a warm cache is current
			o := everything(rv)
			o.Predicate.AllowWatchBookmarks, o.SendInitialEvents = true, &yes
			watching := w.open_("c1", o)
			for i := range watches.ReplayPage + 10 {
				expect(t, watching, fmt.Sprintf("ADDED c1/o%04d", i))
			}
			e := next(t, watching)
			a, err := meta.Accessor(e.Object)
			w.ok(err, "bookmark")
			if e.Type != watch.Bookmark || a.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" || w.revision(e.Object) < last {
				t.Errorf("%s, at %q: the end of what exists: %v", form, rv, e)
			}
			o.SendInitialEvents, o.ResourceVersion = &no, ""
			quiet := w.open_("c1", o)
			eventually(t, "both watch", func() bool { return w.store.Feed().Subscriptions() == 2 })
			w.put(space{cluster: "c1"}, object{"ns", "x"}, "")
			w.remove(object{"ns", "x"})
			expect(t, watching, "ADDED c1/x", "DELETED c1/x")
			expect(t, quiet, "ADDED c1/x", "DELETED c1/x")
			quiet.Stop()
			watching.Stop()
			eventually(t, "both ended", func() bool { return w.store.Feed().Subscriptions() == 0 })
		}
	}
}

// Bookmarks arrive periodically at watches that ask for them, also without matching events,
// and shortly before the timeout. A watch that resumes at a bookmark misses no event.
func TestBookmarks(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1", "c2")
	w.store.watches.BookmarkEvery = 20 * time.Millisecond
	w.put(space{cluster: "c1"}, object{"ns", "x"}, "")
	red := choice{red: true}.options("0")
	red.Predicate.AllowWatchBookmarks = true
	watching := w.open_("c1", red)
	silent := w.open_("c1", choice{red: true}.options("0"))
	var last int64
	for i := range 5 { // changes that the selector excludes
		rev := w.revision(w.put(space{cluster: []cluster.Name{"c1", "c2"}[i%2]}, object{"ns", fmt.Sprint("o", i)}, ""))
		for last < rev {
			e := next(t, watching)
			if e.Type != watch.Bookmark || w.revision(e.Object) < last {
				t.Fatalf("after a bookmark at %d: %v", last, e)
			}
			last = w.revision(e.Object)
		}
	}
	watching.Stop()
	for range watching.ResultChan() { // until it has stopped: it reads the limits
	}
	red.ResourceVersion = fmt.Sprint(last)
	red.Predicate.AllowWatchBookmarks = false
	resumed := w.open_("c1", red)
	at := object{"ns", "y"}
	w.ok(w.apis[0].Create(in("c1"), w.key(at), w.object(at, row{red: true}), nil, 0), "create")
	expect(t, resumed, "ADDED c1/y")
	expect(t, silent, "ADDED c1/y")

	w.store.watches.BookmarkEvery = time.Hour
	ctx, cancel := context.WithTimeout(in("c1"), watches.BeforeDeadline+50*time.Millisecond)
	defer cancel()
	red.Predicate.AllowWatchBookmarks = true
	short, err := w.apis[0].Watch(ctx, w.root, red)
	w.ok(err, "watch")
	if e := next(t, short); e.Type == watch.Added {
		e = next(t, short)
		if e.Type != watch.Bookmark {
			t.Errorf("before its end a watch gets %v", e)
		}
	}
}

// Selectors apply to lists and watches, cold and warm, also to fields of the schema. Objects
// that begin or cease to match cause events.
func TestSelectors(t *testing.T) {
	w, _ := kelvin(t)
	config := w.apis[0].(*registry.Storage).Interface.(*custom)
	config.attrs = cacher.WithCluster(func(o runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := storetest.Attrs(o)
		if err == nil {
			f["spec.v"] = w.value(o)
		}
		return l, f, err
	})
	create(t, w.store, "c1")
	at := object{"ns", "x"}
	set := func(r row) {
		t.Helper()
		w.ok(w.apis[0].GuaranteedUpdate(in("c1"), w.key(at), w.empty(), true, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return w.object(at, r), nil, nil
		}, nil), "update")
	}
	for _, form := range []string{"cold", "warm"} {
		if form == "warm" {
			defer w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
		}
		byLabel := choice{red: true}.options("")
		byField, byBoth := everything(""), choice{red: true}.options("")
		byField.Predicate.Field = fields.OneTermEqualSelector("spec.v", "good")
		byBoth.Predicate.Field = byField.Predicate.Field
		set(row{value: "bad"})
		for _, test := range []struct {
			name string
			o    storage.ListOptions
			want []string
		}{
			{"label", byLabel, []string{"ADDED c1/x", "MODIFIED c1/x", "DELETED c1/x"}},
			{"field", byField, []string{"ADDED c1/x", "MODIFIED c1/x", "DELETED c1/x"}},
			{"both", byBoth, []string{"ADDED c1/x", "DELETED c1/x"}},
			{"none", everything(""), []string{"ADDED c1/x", "MODIFIED c1/x", "MODIFIED c1/x", "MODIFIED c1/x", "DELETED c1/x"}},
		} {
			set(row{value: "bad"})
			test.o.ResourceVersion = fmt.Sprint(w.store.Latest())
			if test.name == "none" {
				test.o.ResourceVersion = ""
			}
			watching := w.open_("c1", test.o)
			if test.name == "none" {
				expect(t, watching, test.want[0])
				test.want = test.want[1:]
			}
			set(row{value: "bad", red: true})
			set(row{value: "good", red: true})
			test.o.ResourceVersion = ""
			if got, err := w.listed(in("c1"), w.root, test.o); err != nil || !slices.Equal(got, []string{"c1/x"}) {
				t.Errorf("%s: list by %s: %v, %v", form, test.name, got, err)
			}
			set(row{value: "good"})
			if got, err := w.listed(in("c1"), w.root, test.o); err != nil || len(got) != map[string]int{"field": 1, "none": 1}[test.name] {
				t.Errorf("%s: list by %s: %v, %v", form, test.name, got, err)
			}
			w.remove(at)
			expect(t, watching, test.want...)
			watching.Stop()
		}
	}
}

// Lists return the same objects cold and warm, at any allowed revision.
func TestListsColdAndWarm(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1", "c2")
	var revs []int64
	for i := range 5 {
		revs = append(revs, w.revision(w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, "")))
		w.put(space{cluster: "c2"}, object{"ns", fmt.Sprint("p", i)}, "")
	}
	token := ""
	for _, form := range []string{"cold", "warm"} {
		if form == "warm" {
			defer w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
		}
		list := func(rv string, match metav1.ResourceVersionMatch, limit int64, from string) (int, *metav1.ListMeta, error) {
			o := everything(rv)
			o.ResourceVersionMatch, o.Predicate.Limit, o.Predicate.Continue = match, limit, from
			l := w.flavour.list()
			err := w.apis[0].GetList(in("c1"), w.root, o, l)
			m, _ := meta.ListAccessor(l)
			return meta.LenList(l), &metav1.ListMeta{Continue: m.GetContinue(), RemainingItemCount: m.GetRemainingItemCount()}, err
		}
		for rv, match := range map[string]metav1.ResourceVersionMatch{"": "", "0": "", fmt.Sprint(revs[2]): metav1.ResourceVersionMatchNotOlderThan} {
			if n, _, err := list(rv, match, 0, ""); n != 5 || err != nil {
				t.Errorf("%s: list at %q: %d, %v", form, rv, n, err)
			}
		}
		if n, _, err := list(fmt.Sprint(revs[2]), metav1.ResourceVersionMatchExact, 0, ""); n != 3 || err != nil {
			t.Errorf("%s: list of the past: %d, %v", form, n, err)
		}
		n, m, err := list("", "", 2, "")
		if n != 2 || err != nil || m.RemainingItemCount == nil || *m.RemainingItemCount != 3 {
			t.Errorf("%s: first page: %d of %+v, %v", form, n, m, err)
		}
		for _, from := range []string{token, m.Continue} { // one of the tokens is from a cold list
			if from == "" {
				continue
			}
			if n, rest, err := list("", "", 2, from); n != 2 || err != nil || *rest.RemainingItemCount != 1 {
				t.Errorf("%s: second page: %d of %+v, %v", form, n, rest, err)
			}
		}
		token = m.Continue
		if _, _, err := list("1000000", metav1.ResourceVersionMatchNotOlderThan, 0, ""); !storage.IsTooLargeResourceVersion(err) {
			t.Errorf("%s: list of the future: %v", form, err)
		}
		if _, _, err := list("x", "", 0, ""); err == nil {
			t.Errorf("%s: a malformed revision is taken", form)
		}
	}
	_, err := w.store.RawClient().Compact(t.Context(), revs[4], clientv3.WithCompactPhysical())
	w.ok(err, "compact")
	o := everything(fmt.Sprint(revs[2]))
	o.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	if _, err := w.listed(in("c1"), w.root, o); !apierrors.IsResourceExpired(err) {
		t.Errorf("list of what is compacted: %v", err)
	}
}
