package joint

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// A view watches two kinds from version 5 on, as a server does that began there. Each kind has one object.
func view(w http.ResponseWriter, req *http.Request) {
	kinds := req.URL.Query()["resource"]
	slices.Sort(kinds)
	if len(kinds) < 2 { // the other one joins soon
		<-req.Context().Done()
		return
	}
	for _, k := range kinds {
		if strings.HasSuffix(k, "@1") {
			w.WriteHeader(http.StatusGone)
			return
		}
	}
	for _, k := range kinds {
		_, kind, _ := strings.Cut(k[:strings.Index(k, "@")], "/")
		_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":{"apiVersion":"v1","kind":%q,"metadata":{"name":"x","resourceVersion":"7"}}}`, kind)
	}
	_ = http.NewResponseController(w).Flush()
	<-req.Context().Done()
}

// A kind whose changes the server does not know any more has a watch of its own until it is listed again. The
// others join again as well.
func TestExpiredKindsJoinAgain(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(view))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	w := New(ctx, server.URL, server.Client(), running.Go)
	join := func(kind, from string) watch.Interface {
		return w.Join(schema.GroupVersionKind{Version: "v1", Kind: kind}, schema.GroupVersionResource{Version: "v1", Resource: kind}, from, Whole)
	}
	old, other := join("old", "1"), join("other", "5")
	for name, of := range map[string]watch.Interface{"old": old, "other": other} {
		for e := range of.ResultChan() { // until it ends
			if name == "old" {
				t.Errorf("%s has %v", name, e)
			}
		}
	}
	if w := join("old", "1"); w != nil {
		t.Error("the kind joins again at a version that the server does not know")
	}
	for _, of := range []watch.Interface{join("old", "6"), join("other", "6")} {
		if of == nil {
			t.Fatal("the kind cannot join after a new list")
		}
		e := <-of.ResultChan()
		if o, ok := e.Object.(*unstructured.Unstructured); e.Type != watch.Added || !ok || o.GetName() != "x" {
			t.Errorf("the event is %v", e)
		}
	}
}
