package provider_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// watches are the open watches of all tenants, by the kinds that they watch.
type watches struct {
	http.RoundTripper
	refuses bool // to watch several kinds together, as other servers do

	mu   sync.Mutex
	open map[*watched]string
}

// RoundTrip implements http.RoundTripper.
func (w *watches) RoundTrip(req *http.Request) (*http.Response, error) {
	_, path, all := strings.Cut(req.URL.Path, "/clusters/*/")
	together := path == "watch"
	if !all || !together && req.URL.Query().Get("watch") == "" {
		return w.RoundTripper.RoundTrip(req)
	}
	if together && w.refuses {
		none := httptest.NewRecorder()
		none.WriteHeader(http.StatusNotFound)
		return none.Result(), nil
	}
	resp, err := w.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	of := []string{path}
	if together {
		of = nil
		for _, r := range req.URL.Query()["resource"] {
			kind, _, _ := strings.Cut(r, "@")
			of = append(of, kind)
		}
	}
	slices.Sort(of)
	body := &watched{resp.Body, w}
	resp.Body = body
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[body] = strings.Join(of, " and ")
	return resp, nil
}

// are returns what is watched.
func (w *watches) are() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Values(w.open))
}

// cut ends all open watches.
func (w *watches) cut() {
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.open))
	w.mu.Unlock()
	for _, b := range all {
		_ = b.Close()
	}
}

// watched is the response of a watch.
type watched struct {
	io.ReadCloser
	of *watches
}

// Close implements io.Closer.
func (b *watched) Close() error {
	b.of.mu.Lock()
	delete(b.of.open, b)
	b.of.mu.Unlock()
	return b.ReadCloser.Close()
}

// TestKindsShareAWatch shows that all kinds are watched over one connection, that no event is lost
// when it is cut, and that servers without such connections have a watch for each kind.
func TestKindsShareAWatch(t *testing.T) {
	for name, c := range map[string]struct {
		refuses bool
		want    []string
	}{
		"together": {false, []string{"apis.kcp.io/v1alpha2/apibindings and example.com/v1/widgets"}},
		"apart":    {true, []string{"apis/apis.kcp.io/v1alpha2/apibindings", "apis/example.com/v1/widgets"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, r := exporter(t), newRecord()
			w := &watches{refuses: c.refuses, open: map[*watched]string{}}
			cfg := rest.CopyConfig(p.Config)
			cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { w.RoundTripper = rt; return w })
			run(t, cfg, r, nil)
			a := bound(t, p)
			a.Apply(widget("w", "1"))
			a.Wait(widgets, "default", "w", finished)
			until(t, "the kinds are watched", func() bool { return slices.Equal(w.are(), c.want) })
			for _, name := range []string{"first", "second", "third"} {
				w.cut()
				a.Apply(widget(name, "1"))
				a.Wait(widgets, "default", name, finished)
				until(t, "the kinds are watched again", func() bool { return slices.Equal(w.are(), c.want) })
			}
			unbind(t, a)
			r.awaitEngaged(t)
			if r.times(a.Name) != 1 {
				t.Errorf("engaged %d times", r.times(a.Name))
			}
			r.check(t)
		})
	}
}
