package watchcache

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// events is a resource without a cache; here it contains config maps.
var events = schema.GroupResource{Resource: "events"}

func uncachedNatives() flavour {
	f := natives()
	f.name, f.root = "uncached", "/n/core/events/-"
	f.resource = func(string) keys.Resource { return keys.NativeResource(events) }
	f.storages = func(t testing.TB, s *served) []storage.Interface {
		return []storage.Interface{storageOf(t, s.Natives(jsonConfig, events), events, storetest.EmptyConfigMap, storetest.EmptyConfigMaps)}
	}
	return f
}

// endWatches ends the watches of a store.
func endWatches(t testing.TB, s *served) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	if s.EndWatches(ctx); ctx.Err() != nil {
		t.Error("the watches did not end")
	}
}

// rest returns the names of the remaining events of a watch, which must end with a bookmark,
// and the revision of that bookmark.
func rest(t testing.TB, w watch.Interface) (names []string, at string) {
	t.Helper()
	for {
		select {
		case e, ok := <-w.ResultChan():
			switch {
			case !ok && at == "":
				t.Fatal("the watch ended without a bookmark")
			case !ok:
				return names, at
			case e.Type == watch.Error:
				t.Fatal(e.Object)
			}
			if at = ""; e.Type == watch.Bookmark {
				a, err := meta.Accessor(e.Object)
				if err != nil {
					t.Fatal(err)
				}
				at = strconv.FormatInt(values.RevisionOf(a.GetResourceVersion()), 10)
				continue
			}
			names = append(names, named(e))
		case <-time.After(storetest.Patience):
			t.Fatal("no event")
		}
	}
}

// burst is the number of events that a watch can buffer while its goroutine does not run.
const burst = 8

// Watches of quiet and busy clusters resume in the next process where the last process ended
// them, despite other writes and compaction.
func TestWatchesResume(t *testing.T) {
	for _, f := range []flavour{natives(), customs(), uncachedNatives()} {
		t.Run(f.name, func(t *testing.T) {
			w := &world{TB: t, flavour: f, dir: t.TempDir()}
			w.start()
			defer func() { w.ended() }()
			create(t, w.store, "quiet", "busy")
			quiet, busy := space{cluster: "quiet"}, space{cluster: "busy"}
			first := w.revision(w.put(quiet, object{"ns", "first"}, ""))
			type request struct {
				context.Context
				key     string
				options storage.ListOptions
			}
			var requests []request
			for _, s := range []cluster.Name{"quiet", "busy", cluster.All} {
				for _, ns := range []string{"", "ns"} {
					o := everything(strconv.FormatInt(first, 10))
					o.Predicate.AllowWatchBookmarks, o.Predicate.GetAttrs = true, storetest.Attrs
					ctx, key := w.request(space{cluster: s}, choice{namespace: ns})
					requests = append(requests, request{ctx, key, o})
				}
			}
			watches := func() (all []watch.Interface) {
				t.Helper()
				for _, r := range requests {
					got, err := w.apis[0].Watch(r, r.key, r.options)
					w.ok(err, "watch")
					all = append(all, got)
				}
				return all
			}
			seen := make([][]string, len(requests))
			open := watches()
			w.put(quiet, object{"ns", "seen"}, "")
			for i := range burst {
				w.put(busy, object{"ns", fmt.Sprint("x", i)}, "")
			}
			for i, o := range open { // no watch is behind
				for len(seen[i]) < []int{1, burst, burst + 1}[i/2] {
					seen[i] = append(seen[i], named(next(t, o)))
				}
			}
			w.ok(w.store.Feed().WaitFor(t.Context(), w.store.Latest()), "wait for the feed")
			_, err := w.store.RawClient().Compact(t.Context(), w.store.Latest())
			w.ok(err, "compact")
			// Writes continue while the watches end.
			var more []string
			done, written := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(written)
				for i := range burst {
					select {
					case <-done:
						return
					default:
						name := fmt.Sprint("y", i)
						if err := w.apis[0].Create(busy.context(), w.key(object{"ns", name}), w.object(object{"ns", name}, row{}), nil, 0); err != nil {
							t.Error(err)
							return
						}
						more = append(more, name)
					}
				}
			}()
			go func() { endWatches(t, w.store); close(done) }()
			for i, o := range open {
				var names []string
				names, requests[i].options.ResourceVersion = rest(t, o)
				seen[i] = append(seen[i], names...)
			}
			<-written
			if _, err := w.apis[0].Watch(in("quiet"), w.root, everything("")); !apierrors.IsTooManyRequests(err) {
				t.Errorf("a watch that comes after the end: %v", err)
			}
			w.ended()

			w.start()
			w.put(quiet, object{"ns", "last"}, "")
			w.put(busy, object{"ns", "last"}, "")
			var want [3][]string
			want[0] = []string{"ADDED quiet/seen", "ADDED quiet/last"}
			for i := range burst {
				want[1] = append(want[1], fmt.Sprint("ADDED busy/x", i))
			}
			for _, y := range more {
				want[1] = append(want[1], "ADDED busy/"+y)
			}
			want[2] = append(append([]string{"ADDED quiet/seen"}, want[1]...), "ADDED quiet/last", "ADDED busy/last")
			want[1] = append(want[1], "ADDED busy/last")
			open = watches()
			for i, o := range open {
				for all := want[i/2]; len(seen[i]) < len(all); {
					if e := next(t, o); e.Type != watch.Bookmark {
						seen[i] = append(seen[i], named(e))
					}
				}
				if !slices.Equal(seen[i], want[i/2]) {
					t.Errorf("watch %d: got %q, want %q", i, seen[i], want[i/2])
				}
			}
			w.put(quiet, object{"ns", "new"}, "")
			expect(t, open[0], "ADDED quiet/new")
		})
	}
}

// A watch that begins with existing objects gets the bookmark after them before the store
// ends it.
func TestLastBookmarkOfAWatchList(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1")
		w.put(space{cluster: "c1"}, object{"ns", "x"}, "")
		o := everything("")
		o.SendInitialEvents, o.Predicate.AllowWatchBookmarks = new(true), true
		got, err := w.apis[0].Watch(in("c1"), w.root, o)
		w.ok(err, "watch")
		go endWatches(t, w.store)
		expect(t, got, "ADDED c1/x")
		e := next(t, got)
		if e.Type != watch.Bookmark || !endsInitial(e) {
			t.Errorf("after what exists comes %v", e)
		}
		for e := range got.ResultChan() {
			if e.Type != watch.Bookmark || endsInitial(e) {
				t.Errorf("then %v", e)
			}
		}
	})
}

// A watch that cannot resume without a gap gets an expired error.
func TestResumeAfterCompaction(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		create(t, w.store, "c1")
		made := w.put(space{cluster: "c1"}, object{"ns", "x"}, "")
		endWatches(t, w.store)
		last, err := w.store.Marked(t.Context(), "resume")
		w.ok(err, "mark")
		at := strconv.FormatInt(last, 10)
		key := w.store.Prefix() + w.resource("").Key("c1", "ns", "x").Path()
		deleted, err := w.store.RawClient().Delete(t.Context(), key, clientv3.WithPrevKV())
		w.ok(err, "delete revision %d", w.revision(made))
		_, err = w.store.RawClient().Compact(t.Context(), deleted.Header.Revision)
		w.ok(err, "compact")
		w.ended()
		w.start()
		got, err := w.apis[0].Watch(in("c1"), w.root, everything(at))
		w.ok(err, "watch")
		if e := next(t, got); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
			t.Errorf("a watch from before what was forgotten got %v", e)
		}
	})
}

// endsInitial reports whether a bookmark ends the initial events of a watch.
func endsInitial(e watch.Event) bool {
	a, err := meta.Accessor(e.Object)
	return err == nil && a.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
