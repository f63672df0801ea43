package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
)

// A several is a watch of several kinds in one response.
type several struct {
	t      *testing.T
	lines  chan severalEvent // closed at the end
	closed func()
}

type severalEvent struct {
	Type   watch.EventType
	Object unstructured.Unstructured
}

// several begins a watch of widgets, Secrets and APIBindings.
func (v *viewer) several(query string) *several {
	v.t.Helper()
	return v.severalOf("resource=example.com/v1/widgets&resource=v1/secrets&resource=apis.kcp.io/v1alpha2/apibindings" + query)
}

// severalOf begins a watch of the kinds of a query.
func (v *viewer) severalOf(query string) *several {
	v.t.Helper()
	resp := v.watchSeveral("*", query)
	if resp.StatusCode != http.StatusOK {
		v.t.Fatalf("the watch is %s", resp.Status)
	}
	s := &several{t: v.t, lines: make(chan severalEvent), closed: func() { _ = resp.Body.Close() }}
	v.t.Cleanup(s.closed)
	go func() {
		defer close(s.lines)
		for events := json.NewDecoder(resp.Body); ; {
			var e severalEvent
			if events.Decode(&e) != nil {
				return
			}
			select {
			case s.lines <- e:
			case <-v.t.Context().Done():
				return
			}
		}
	}()
	return s
}

func (v *viewer) watchSeveral(at, query string) *http.Response {
	v.t.Helper()
	client := must(rest.HTTPClientFor(v.config("")))(v.t)
	req := must(http.NewRequestWithContext(v.t.Context(), http.MethodGet, "http://kcp"+v.url+at+"/watch?"+query, http.NoBody))(v.t)
	return must(client.Do(req))(v.t)
}

// next returns the next event.
func (s *several) next() severalEvent {
	s.t.Helper()
	select {
	case e, ok := <-s.lines:
		if !ok {
			s.t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(patience):
		s.t.Fatal("no event")
	}
	return severalEvent{}
}

// objects returns the events before the next bookmark, and the revision of that.
func (s *several) objects() (all []string, revision string) {
	s.t.Helper()
	for {
		e := s.next()
		if e.Type == watch.Bookmark {
			return all, e.Object.GetResourceVersion()
		}
		all = append(all, e.String())
	}
}

// events returns the next events that are no bookmarks.
func (s *several) events(count int) (all []severalEvent) {
	s.t.Helper()
	for len(all) < count {
		if e := s.next(); e.Type != watch.Bookmark {
			all = append(all, e)
		}
	}
	return all
}

// String implements [fmt.Stringer].
func (e severalEvent) String() string {
	return fmt.Sprintf("%s %s %s in %s", e.Type, e.Object.GetKind(), e.Object.GetName(), cluster.Of(&e.Object))
}

// TestSeveralKindsAreWatchedTogether shows the watch of several kinds of a view: it begins with the
// objects, has the changes of all kinds in the order of their revisions, resumes at a bookmark, and
// sees no more of a consumer that rejects a claim.
func TestSeveralKindsAreWatchedTogether(t *testing.T) {
	t.Parallel()
	p := claiming(t, claimSecrets)
	a, b := newTenant(t), newTenant(t)
	a.create(apiBindings, answering(p.name, acceptSecrets))
	b.create(apiBindings, answering(p.name, rejectSecrets))
	a.create(sharedWidgets, newWidget("old"))
	a.secret("old", nil)
	b.secret("hidden", nil)
	pat := p.view("pat")
	first := pat.several("")
	got, from := first.objects()
	want := []string{
		fmt.Sprintf("ADDED APIBinding widgets in %s", a.name), fmt.Sprintf("ADDED APIBinding widgets in %s", b.name),
		fmt.Sprintf("ADDED Secret old in %s", a.name), fmt.Sprintf("ADDED Widget old in %s", a.name),
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Fatalf("the watch begins with %v, not %v", got, want)
	}

	a.secret("s", nil)
	b.create(sharedWidgets, newWidget("w"))
	b.secret("hidden-too", nil)
	a.create(sharedWidgets, newWidget("w"))
	b.answer(acceptSecrets)
	want = []string{
		fmt.Sprintf("ADDED Secret s in %s", a.name), fmt.Sprintf("ADDED Widget w in %s", b.name), fmt.Sprintf("ADDED Widget w in %s", a.name),
		fmt.Sprintf("MODIFIED APIBinding widgets in %s", b.name), fmt.Sprintf("ADDED Secret hidden in %s", b.name), fmt.Sprintf("ADDED Secret hidden-too in %s", b.name),
	}
	for _, w := range []*several{first, pat.several("&resourceVersion=" + from)} {
		var got []string
		for _, e := range w.events(len(want)) {
			got = append(got, e.String())
		}
		// The consumer's answer and the secrets that come with it have the same revision.
		if slices.Sort(got[3:]); !slices.Equal(got[:3], want[:3]) || !slices.Equal(got[3:], sorted(want[3:])) {
			t.Fatalf("the events are %v, not %v", got, want)
		}
	}

	a.answer(rejectSecrets)
	a.secret("late", nil)
	a.create(sharedWidgets, newWidget("late"))
	for _, e := range first.events(4) { // the binding, two secrets that go, and the widget
		if e.Object.GetKind() == "Secret" && (e.Type != watch.Deleted || e.Object.Object["data"] != nil) {
			t.Errorf("after the rejection there is %v", e)
		}
		if e.Object.GetName() == "late" && e.Object.GetKind() != "Widget" {
			t.Errorf("after the rejection there is %v", e)
		}
	}
}

// TestKindsBeginAtTheirOwnVersions shows a watch of several kinds that each have a resource version:
// each has exactly the later changes, and they come in order.
func TestKindsBeginAtTheirOwnVersions(t *testing.T) {
	t.Parallel()
	p, a := claiming(t, claimSecrets), newTenant(t)
	a.create(apiBindings, answering(p.name, acceptSecrets))
	pat := p.view("pat")
	now := func() string {
		return must(pat.widgets("*").List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()
	}
	a.secret("s0", nil)
	early := now()
	a.secret("s1", nil)
	a.create(sharedWidgets, newWidget("w1"))
	late := now()
	a.secret("s2", nil)
	a.create(sharedWidgets, newWidget("w2"))
	w := pat.severalOf("resource=v1/secrets@" + late + "&resource=example.com/v1/widgets@" + early)
	var got []string
	for _, e := range w.events(3) {
		got = append(got, e.Object.GetName())
	}
	if want := []string{"w1", "s2", "w2"}; !slices.Equal(got, want) {
		t.Errorf("the events are of %v, not %v", got, want)
	}
	if e := w.next(); e.Type != watch.Bookmark || must(strconv.ParseInt(e.Object.GetResourceVersion(), 10, 64))(t) < must(strconv.ParseInt(late, 10, 64))(t) {
		t.Errorf("after them there is %v at %s", e, e.Object.GetResourceVersion())
	}
}

func sorted(all []string) []string {
	all = slices.Clone(all)
	slices.Sort(all)
	return all
}

// TestEventsTogetherAreInOrder writes two kinds in several clusters concurrently, and shows that
// no event of a watch of both is before one of an earlier revision, that a watch resumed at any
// bookmark has all later events, and that the watch ends when the export changes the schema.
func TestEventsTogetherAreInOrder(t *testing.T) {
	t.Parallel()
	const clusters, objects = 3, 20
	p := claiming(t, claimSecrets)
	pat := p.view("pat")
	var tenants []*tenant
	for range clusters {
		c := newTenant(t)
		c.create(apiBindings, answering(p.name, acceptSecrets))
		tenants = append(tenants, c)
	}
	w := pat.several("")
	if got, _ := w.objects(); len(got) != clusters {
		t.Fatalf("the watch begins with %v", got)
	}
	var writers sync.WaitGroup
	for _, c := range tenants {
		writers.Go(func() {
			for i := range objects {
				c.create(sharedWidgets, newWidget(fmt.Sprint("w", i)))
			}
		})
		writers.Go(func() {
			for i := range objects {
				c.secret(fmt.Sprint("s", i), nil)
			}
		})
	}
	var events, bookmarks []int64
	for len(events) < 2*clusters*objects {
		e := w.next()
		rev := must(strconv.ParseInt(e.Object.GetResourceVersion(), 10, 64))(t)
		if e.Type == watch.Bookmark {
			bookmarks = append(bookmarks, rev)
			if len(events) > 0 && rev < events[len(events)-1] {
				t.Errorf("the bookmark %d is after the event %d", rev, events[len(events)-1])
			}
			continue
		}
		if len(events) > 0 && rev < events[len(events)-1] || len(bookmarks) > 0 && rev <= bookmarks[len(bookmarks)-1] {
			t.Errorf("the event %d is after %v and %v", rev, events, bookmarks)
		}
		events = append(events, rev)
	}
	writers.Wait()
	if len(bookmarks) > 0 {
		at := bookmarks[len(bookmarks)/2]
		left := events[slices.IndexFunc(events, func(e int64) bool { return e > at }):]
		for i, e := range pat.several("&resourceVersion=" + fmt.Sprint(at)).events(len(left)) {
			if e.Object.GetResourceVersion() != fmt.Sprint(left[i]) {
				t.Fatalf("resumed at %d, event %d is %v, not %d", at, i, e.Object.GetResourceVersion(), left[i])
			}
		}
	}
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	must(p.any.Resource(apiExports).Patch(t.Context(), "widgets", types.MergePatchType,
		[]byte(`{"spec":{"resources":[{"name":"widgets","group":"example.com","schema":"v2.widgets.example.com"}]}}`), metav1.PatchOptions{}))(t)
	for range w.lines { // until the watch ends
	}
}

// TestWatchesTogetherThatAreRefused shows that each kind of a watch of several is authorized, and
// that mistakes are answered.
func TestWatchesTogetherThatAreRefused(t *testing.T) {
	t.Parallel()
	p, b := claiming(t, claimSecrets), newTenant(t)
	b.create(apiBindings, answering(p.name, acceptSecrets))
	pat := p.view("pat")
	for name, c := range map[string]struct {
		as        string
		at, query string
		code      int
		text      string
	}{
		"another user":             {as: "eve", query: "resource=v1/secrets", code: 403},
		"without a kind":           {code: 400, text: "?resource=v1/configmaps"},
		"a kind that is not asked": {query: "resource=example.com/v1/widgets&resource=v1/configmaps", code: 404, text: "configmaps"},
		"a missing version":        {query: "resource=example.com/v1/widgets&resource=example.com/v7/widgets", code: 404},
		"no version":               {query: "resource=widgets", code: 400, text: "<group>/<version>/<plural>"},
		"a path":                   {query: "resource=v1/namespaces/secrets", code: 404},
		"a name":                   {query: "resource=v1/../secrets", code: 404},
		"twice":                    {query: "resource=v1/secrets&resource=v1/secrets", code: 400, text: "twice"},
		"a selector":               {query: "resource=v1/secrets&labelSelector=a", code: 400, text: "labelSelector"},
		"a version of one kind":    {query: "resource=v1/secrets@7&resource=example.com/v1/widgets", code: 400, text: "one resourceVersion for all kinds"},
		"two versions of a kind":   {query: "resource=v1/secrets@7&resourceVersion=7", code: 400, text: "one resourceVersion for all kinds"},
		"no own version":           {query: "resource=v1/secrets@0", code: 400, text: "one resourceVersion for all kinds"},
		"a malformed own version":  {query: "resource=v1/secrets@x", code: 400},
		"twice with versions":      {query: "resource=v1/secrets@7&resource=v1/secrets@8", code: 400, text: "twice"},
		"a malformed version":      {query: "resource=v1/secrets&resourceVersion=x", code: 400},
		"too many":                 {query: strings.Repeat("resource=v1/secrets&", 33), code: 400, text: "at most 32"},
		"one cluster":              {at: string(b.name), query: "resource=v1/secrets", code: 404},
	} {
		t.Run(name, func(t *testing.T) {
			v := *pat
			v.t = t
			if c.as != "" {
				v = *p.view(c.as)
				v.t = t
			}
			at := c.at
			if at == "" {
				at = "*"
			}
			resp := v.watchSeveral(at, c.query)
			defer func() { _ = resp.Body.Close() }()
			var status metav1.Status
			err := json.NewDecoder(resp.Body).Decode(&status)
			if resp.StatusCode != c.code || !strings.Contains(status.Message, c.text) {
				t.Errorf("%s %q %v", resp.Status, status.Message, err)
			}
		})
	}
}
