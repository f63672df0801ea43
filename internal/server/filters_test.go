package server

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/storage/store"
)

// The first filter of a table gets a request first. Filters that are off get none.
func TestFiltersAreFoldedInOrder(t *testing.T) {
	var passed []string
	named := func(name string, off bool) filter {
		return filter{name, off, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				passed = append(passed, name)
				next.ServeHTTP(w, req)
			})
		}}
	}
	end := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = append(passed, "end") })
	folded(end, []filter{named("first", false), named("off", true), named("second", false)}).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if want := []string{"first", "second", "end"}; !slices.Equal(passed, want) {
		t.Errorf("the request passed %v, want %v", passed, want)
	}
}

// Each filter relies on those before it. A change of the order can let users act without
// authentication or authorization, or escape the limits of their tenant.
func TestOrderOfFilters(t *testing.T) {
	s := &Server{store: &store.Store{}}
	s.config.complete()
	c := genericapiserver.NewConfig(legacyscheme.Codecs)
	c.SecureServing = &genericapiserver.SecureServingInfo{}
	names := func(filters []filter) (all []string) {
		for _, f := range filters {
			all = append(all, f.name)
		}
		return all
	}
	want := []string{
		"bounds", "log", "panics in the log", "accepted form", "read limits", "bodies of reads",
		"peers", "outages", "cluster", "writes to all clusters", "mount", "audit event", "cluster in the audit event",
		"panics", "panics of filters in the log", "time", "request info", "gets from all clusters", "end of watches",
		"goroutine", "latency", "request log", "retry after", "strict transport security", "cache control", "goaway",
		"wait group", "requested URL", "deadline", "end of the work", "timeout", "panics of the goroutine in the log",
		"stack", "work", "warnings", "cross-origin requests",
		"sent header", "authentication", "tracing", "audit", "served URL", "mount proxy", "readable refusals", "limits of the user",
		"impersonation", "scopes", "authorization of views", "rights of open requests", "offline clusters", "limits of the tenant", "counts", "views",
	}
	if diff := cmp.Diff(want, names(s.filters(c))); diff != "" {
		t.Error(diff)
	}
	want = []string{"deep reviews", "homes", "broken paths", "authorization"}
	if diff := cmp.Diff(want, names(s.authorizing(c))); diff != "" {
		t.Error(diff)
	}
}
