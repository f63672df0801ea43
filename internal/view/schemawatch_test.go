package view

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/sharing/bind"
)

// watched are the schemas of a watch in a test: labels and revision by name.
type watched struct {
	of     map[string]watchedSchema
	reads  []string // since the last look
	watch  *schemaWatch
	out    *httptest.ResponseRecorder
	change chan struct{}
}

type watchedSchema struct {
	revision int64
	label    string
}

func newWatched(selector string) *watched {
	w := &watched{of: map[string]watchedSchema{}, out: httptest.NewRecorder(), change: make(chan struct{}, 1)}
	selects, _ := labels.Parse(selector)
	w.watch = &schemaWatch{q: &schemaQuery{labels: selects, fields: fields.Everything()}, seen: map[string]seenSchema{}, out: w.out, bound: w.bound, read: w.read}
	return w
}

func (w *watched) bound() (all []bind.BoundSchema) {
	for name, s := range w.of {
		all = append(all, bind.BoundSchema{Name: name, UID: "uid of " + name, Revision: s.revision})
	}
	slices.SortFunc(all, func(a, b bind.BoundSchema) int { return int(a.Name[0]) - int(b.Name[0]) })
	return all
}

func (w *watched) read(_ context.Context, s bind.BoundSchema) (*unstructured.Unstructured, error) {
	w.reads = append(w.reads, s.Name)
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetName(s.Name)
	o.SetUID(types.UID(s.UID))
	o.SetResourceVersion(time.Duration(w.of[s.Name].revision).String())
	o.SetLabels(map[string]string{"is": w.of[s.Name].label})
	return o, nil
}

// next returns what was read and sent since the last call.
func (w *watched) next(t *testing.T) (all []string) {
	t.Helper()
	for _, name := range w.reads {
		all = append(all, "read "+name)
	}
	w.reads = nil
	for events := json.NewDecoder(w.out.Body); events.More(); {
		var e struct {
			Type   string
			Object struct{ Metadata struct{ Name string } }
		}
		if err := events.Decode(&e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Type+" "+e.Object.Metadata.Name)
	}
	return all
}

// A watch reads only the schemas that have changed, also if its selector does not match them.
func TestWatchesReadChangedSchemas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched("is=in")
		w.of["a"], w.of["b"], w.of["c"] = watchedSchema{1, "in"}, watchedSchema{2, "out"}, watchedSchema{3, "in"}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go w.watch.follow(ctx, w.change)
		synctest.Wait()
		if diff := cmp.Diff([]string{"read a", "read b", "read c", "ADDED a", "ADDED c"}, w.next(t)); diff != "" {
			t.Error(diff)
		}
		for _, step := range []struct {
			what   string
			change func()
			want   []string
		}{
			{"nothing", func() {}, nil},
			{"one", func() { w.of["a"] = watchedSchema{4, "in"} }, []string{"read a", "MODIFIED a"}},
			{"one that is not selected", func() { w.of["b"] = watchedSchema{5, "out"} }, []string{"read b"}},
			{"one that is selected now", func() { w.of["b"] = watchedSchema{6, "in"} }, []string{"read b", "ADDED b"}},
			{"one that is not selected any more", func() { w.of["a"] = watchedSchema{7, "out"} }, []string{"read a", "DELETED a"}},
			{"nothing since", func() {}, nil},
			{"a deleted one that is still bound", func() { w.of["b"] = watchedSchema{} }, []string{"DELETED b"}},
			{"two that are not bound any more", func() { delete(w.of, "a"); delete(w.of, "c") }, []string{"DELETED c"}},
			{"one that is new", func() { w.of["d"] = watchedSchema{8, "in"} }, []string{"read d", "ADDED d"}},
		} {
			step.change()
			w.change <- struct{}{}
			<-time.After(watchPause)
			synctest.Wait()
			if diff := cmp.Diff(step.want, w.next(t)); diff != "" {
				t.Errorf("%s: %s", step.what, diff)
			}
		}
	})
}

// A watch takes a processor seat of its tenant to read changes, and has none while it waits. Without
// a seat it tries again, and loses no change.
func TestWatchesOfSchemasTakeSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shares := fair.New(fair.Limits{Light: 1, LightEach: 1, Heavy: 1, HeavyEach: 1, Waiting: 10, Timeout: time.Second})
		begin := func() (context.Context, *fair.Work) {
			work := shares.Begin()
			work.For("tenant")
			return fair.With(t.Context(), work), work
		}
		ctx, work := begin()
		ctx, cancel := context.WithCancel(ctx)
		defer work.End()
		defer synctest.Wait()
		defer cancel()
		if err := work.Compute(ctx, fair.Light); err != nil {
			t.Fatal(err)
		}
		w := newWatched("")
		w.of["a"] = watchedSchema{1, ""}
		go w.watch.follow(ctx, w.change)
		synctest.Wait()
		if diff := cmp.Diff([]string{"read a", "ADDED a"}, w.next(t)); diff != "" {
			t.Error(diff)
		}
		asks, other := begin()
		defer other.End()
		if err := other.Compute(asks, fair.Light); err != nil {
			t.Fatalf("a watch that waits has a seat: %v", err)
		}
		w.of["b"] = watchedSchema{2, ""}
		w.change <- struct{}{}
		<-time.After(10 * time.Second)
		synctest.Wait()
		if got := w.next(t); got != nil {
			t.Errorf("without a seat: %v", got)
		}
		other.End()
		<-time.After(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"read b", "ADDED b"}, w.next(t)); diff != "" {
			t.Error(diff)
		}
	})
}
