package usage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// serveWidgets counts a request for widgets of a cluster.
func serveWidgets(t testing.TB, r *Requests, c cluster.Name, verb, userName string) {
	t.Helper()
	ctx := request.WithUser(cluster.With(t.Context(), c), &user.DefaultInfo{Name: userName})
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: widgets.Group, Resource: widgets.Resource})
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Count(httptest.NewRecorder(), req, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { Serving(req.Context(), widgets) }))
}

// tallied returns the stored requests for widgets of a cluster.
func tallied(t testing.TB, r *Requests, c cluster.Name) map[string]int64 {
	t.Helper()
	all, err := r.Of(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return all[c][countedAs(widgets.GroupResource(), widgets.Identity)]
}

func (w *world) fence(c cluster.Name, from, to store.State) {
	w.t.Helper()
	_, err := w.Commit(w.t.Context(), nil, store.Fence{Cluster: c, From: from, State: to})
	w.ok(err)
}

func (w *world) save(r *Requests) { w.t.Helper(); w.ok(r.Write(w.t.Context())) }

func TestRequestsOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fence("c1", store.Gone, store.Active)
	w.fence("c2", store.Gone, store.Active)
	one, other := NewRequests(w.Store, "self"), NewRequests(w.Store, "self")
	for range 3 {
		serveWidgets(t, one, "c1", "get", "alice")
		serveWidgets(t, other, "c1", "get", "alice")
	}
	serveWidgets(t, one, "c1", "list", "alice")
	serveWidgets(t, one, "c1", "get", "self")
	serveWidgets(t, one, "c2", "create", "alice")
	w.save(one)
	w.save(other)
	w.save(one) // nothing more
	serveWidgets(t, other, "c1", "get", "alice")
	w.save(other)
	w.Store.Close()
	w.start()
	r := NewRequests(w.Store, "self")
	for c, want := range map[cluster.Name]map[string]int64{"c1": {"get": 7, "list": 1}, "c2": {"create": 1}, "c3": nil} {
		if d := cmp.Diff(want, tallied(t, r, c)); d != "" {
			t.Errorf("%s: %s", c, d)
		}
	}
	if gr := counted(countedAs(schema.GroupResource{Group: "a.example.com", Resource: "widgets"}, "f00d")); gr.String() != "widgets.a.example.com" {
		t.Error(gr)
	}
}

// A batch whose write got no answer is counted once, whether it was made or not.
func TestRequestsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fence("c1", store.Gone, store.Active)
	r := NewRequests(w.Store, "self")
	serveWidgets(t, r, "c1", "get", "alice")
	w.save(r)
	made := batch{r.last, map[cluster.Name]counts{"c1": {countedAs(widgets.GroupResource(), widgets.Identity): {"get": 1}}}}
	r.unsure = append(r.unsure, made) // as if the answer was lost
	serveWidgets(t, r, "c1", "get", "alice")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no answer"))
	if r.Write(ended) == nil {
		t.Fatal("written without etcd")
	}
	serveWidgets(t, r, "c1", "get", "alice")
	w.save(r)
	if got := tallied(t, r, "c1")["get"]; got != 3 {
		t.Errorf("%d of 3 requests are counted", got)
	}
}

// No tally is left behind for a cluster that is deleted, and it keeps none from those that are not.
func TestRequestsToADeletedCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fence("c1", store.Gone, store.Active)
	w.fence("c2", store.Gone, store.Active)
	r := NewRequests(w.Store, "self")
	serveWidgets(t, r, "c1", "get", "alice")
	serveWidgets(t, r, "c2", "get", "alice")
	serveWidgets(t, r, "gone", "get", "alice")
	w.fence("c1", store.Active, store.Terminating)
	w.save(r)
	for c, want := range map[cluster.Name]int64{"c1": 0, "c2": 1, "gone": 0} {
		if got := tallied(t, r, c)["get"]; got != want {
			t.Errorf("%s has %d requests", c, got)
		}
	}
	for i := range 2 * maxWriters {
		serveWidgets(t, r, "c2", "get", "alice")
		w.save(r)
		r = NewRequests(w.Store, "self") // as after a restart
		if got := tallied(t, r, "c2")["get"]; got != int64(i+2) {
			t.Fatalf("%d requests after %d restarts", got, i)
		}
	}
	values, err := w.ReadNotes(t.Context(), []keys.Key{tallyOf("c2")})
	w.ok(err)
	if got := len(readTally(values[0]).Writers); got != maxWriters {
		t.Errorf("%d processes are in the tally", got)
	}
	if len(r.new)+len(r.open)+len(r.unsure) != 0 {
		t.Error("requests stay in memory")
	}
}

// The resources of a tally are limited: a tenant can define others without end.
func TestRequestsForManyResources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fence("c1", store.Gone, store.Active)
	r := NewRequests(w.Store, "self")
	for i := range 3 * maxCounted {
		r.add(&r.new, "c1", countedAs(schema.GroupResource{Group: fmt.Sprintf("g%d.example.com", i), Resource: "widgets"}, ""), "get", 1)
		if i%maxCounted == 0 {
			w.save(r)
		}
	}
	w.save(r)
	all, err := r.Of(t.Context(), "c1")
	w.ok(err)
	sum := int64(0)
	for _, v := range all["c1"] {
		sum += v["get"]
	}
	if len(all["c1"]) != maxCounted+1 || sum != 3*maxCounted {
		t.Errorf("%d resources with %d requests", len(all["c1"]), sum)
	}
}
