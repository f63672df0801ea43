package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/workload/answers"
)

// A listing plays a physical cluster that has objects and that lists and watches only. Like kube-apiserver, it
// ignores the limit of a list from its cache.
type listing struct {
	of    map[string]int // objects of each resource
	bound map[string]int // of each resource: objects of a response that are too large; 0 for none
	err   error          // of lists of other kinds
	fill  func(metadata map[string]any)
	asked chan struct{}

	mu    sync.Mutex
	lists map[string][]string // the limits of lists, by resource; guarded by mu
}

// RoundTrip implements [http.RoundTripper].
func (l *listing) RoundTrip(r *http.Request) (*http.Response, error) {
	resource, query := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], r.URL.Query()
	have, known := l.of[resource]
	if !known && l.err != nil {
		l.asked <- struct{}{}
		return nil, l.err
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	if query.Get("watch") == "true" {
		reader, writer := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
		resp.Body = reader
		return resp, nil
	}
	l.mu.Lock()
	l.lists[resource] = append(l.lists[resource], query.Get("limit"))
	l.mu.Unlock()
	first, _ := strconv.Atoi(query.Get("continue"))
	end := have
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && query.Get("resourceVersion") != "0" {
		end = min(have, first+limit)
	}
	if most := l.bound[resource]; most > 0 && end-first >= most {
		reader, writer := io.Pipe()
		resp.Body = reader
		_ = writer.CloseWithError(fmt.Errorf("%w: really", answers.ErrTooLarge))
		return resp, nil
	}
	items := []any{}
	for i := first; i < end; i++ {
		metadata := map[string]any{"name": fmt.Sprintf("o%d", i), "namespace": "x", "uid": fmt.Sprintf("u%d", i), "resourceVersion": "7", "labels": map[string]any{workload.OwnerLabel: "here"}}
		if l.fill != nil {
			l.fill(metadata)
		}
		items = append(items, map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
	}
	list := map[string]any{"apiVersion": "apps/v1", "kind": "DeploymentList", "metadata": map[string]any{"resourceVersion": "9"}, "items": items}
	if end < have {
		list["metadata"] = map[string]any{"resourceVersion": "9", "continue": strconv.Itoa(end), "remainingItemCount": have - end}
	}
	text, err := json.Marshal(list)
	resp.Body = io.NopCloser(strings.NewReader(string(text)))
	return resp, err
}

// sweeping returns an engine for the listing.
func (l *listing) sweeping(t *testing.T) *Engine {
	t.Helper()
	l.lists = map[string][]string{}
	e, err := New("here", &rest.Config{Host: "https://x", Transport: l, QPS: -1}, &hub{wake: make(chan func(kcp.Key), 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// swept returns an engine that knows what the listing has.
func (l *listing) swept(t *testing.T) *Engine {
	t.Helper()
	e := l.sweeping(t)
	ctx, end := context.WithCancel(context.Background())
	t.Cleanup(func() { end(); e.Wait() })
	if err := e.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	return e
}

// If objects of one kind are too large to be listed, that is the trouble of this kind: the engine works on the
// others. Pages that are too large get fewer objects.
func TestLargeObjects(t *testing.T) {
	l := &listing{of: map[string]int{"deployments": 1000, "configmaps": 3}, bound: map[string]int{"deployments": 130, "configmaps": 1}}
	e := l.swept(t)
	j := &job{Engine: e, profile: (&hub{}).Profile(configMaps())}
	j.holding = e.hold(j.profile)
	defer e.release(j.holding)
	if why := j.await(t.Context()); why == nil || why.word != "TooLarge" {
		t.Errorf("the kind that is too large: %v", why)
	}
	h := e.hold((&hub{}).Profile(deployments()))
	defer e.release(h)
	select {
	case <-h.kind.Ready():
	default:
		t.Fatal("the kind with large pages is not known after the sweep")
	}
	if got := len(h.kind.List("*")); got != 1000 || e.counts.all != 1000 {
		t.Errorf("%d objects, %d are counted", got, e.counts.all)
	}
	if got := fmt.Sprint(l.lists["deployments"]); got != "[1 500 250 125 125 125 125 125 125 125 125]" {
		t.Errorf("the limits of lists are %s", got)
	}
}

// A report says that the target refuses a generation only if the engine knows whether the target has an object.
func TestRefusedReports(t *testing.T) {
	l := &listing{of: map[string]int{"deployments": 1, "configmaps": 3}, bound: map[string]int{"deployments": 130, "configmaps": 1}}
	e := l.swept(t)
	want := webDeployment()
	had, copied := &workload.TargetStatus{}, webDeployment()
	had.Spec.Workload, had.Spec.TargetGeneration = Reference(deployments(), want), 5
	copied.SetGeneration(7)
	for name, c := range map[string]struct {
		kind             schema.GroupResource // configMaps cannot be listed
		why              string
		last             *workload.TargetStatus
		have             *object
		refused, copyHas int64 // generations
	}{
		"nothing was created":      {kind: deployments(), why: "Invalid", last: had, refused: 1},
		"an update":                {kind: deployments(), why: "Invalid", last: had, have: copied, refused: 1, copyHas: 7},
		"not known":                {kind: configMaps(), why: "Forbidden"},
		"not known, it was there":  {kind: configMaps(), why: "Forbidden", last: had, copyHas: 5},
		"not served":               {kind: configMaps(), why: workload.NotServed, refused: 1},
		"not served, it was there": {kind: configMaps(), why: workload.NotServed, last: had, copyHas: 5},
	} {
		h := e.hold((&hub{}).Profile(c.kind))
		j := &job{Engine: e, holding: h, profile: h.profile, id: web(), want: want, have: c.have, report: c.last}
		if err := j.tell(t.Context(), reason{c.why, "text"}); err != nil {
			t.Fatal(err)
		}
		got := locked(e.desired.(*hub), func() workload.TargetStatusSpec { return e.desired.(*hub).report.Spec })
		if got.Reason != c.why || got.RefusedGeneration != c.refused || got.TargetGeneration != c.copyHas {
			t.Errorf("%s: %+v", name, got)
		}
		e.release(h)
	}
}

// The error of a sweep that does not end is that of its lists: a busy server did not ask the physical cluster.
func TestSweepOfABusyServer(t *testing.T) {
	asked := make(chan struct{}, 1000)
	l := &listing{err: dial.ErrBusy, asked: asked}
	e := l.sweeping(t)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Sweep(ctx) }()
	for range 4 { // both kinds, and again: the first errors are known then
		<-asked
	}
	end()
	if err := <-done; !errors.Is(err, dial.ErrBusy) {
		t.Errorf("the sweep failed with: %v", err)
	}
	e.Wait()
}
