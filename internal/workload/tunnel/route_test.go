package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A server without the tunnel of a target reaches the target through one that has it, however many
// there are. It uses its own once it has one, and open requests end with the server in between.
func TestPeers(t *testing.T) {
	p := newPair(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/watch" {
			fmt.Fprintf(w, "%s %s", req.Method, req.URL)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	})
	passes := func(pool *Pool, stop <-chan struct{}) Server {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			pool.Pass(w, req, strings.TrimPrefix(req.URL.Path, "/"), stop)
		}))
		t.Cleanup(s.Close)
		at, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		at.Path = "/"
		return Server{URL: at, TLS: &tls.Config{InsecureSkipVerify: true}}
	}
	stop := make(chan struct{})
	has, lacks := passes(p.pool, stop), passes(&Pool{}, stop)
	gone := Server{URL: &url.URL{Scheme: "https", Host: "127.0.0.1:1"}, TLS: &tls.Config{}}
	own := &Pool{}
	through := func(target string, all ...Server) *http.Client {
		for i := range all {
			all[i].URL = all[i].URL.JoinPath(target)
		}
		return &http.Client{Transport: own.Route(target, func(context.Context) ([]Server, error) { return all, nil })}
	}
	for range 20 {
		if got, err := get(t, through("t", lacks, has, gone), "/x"); err != nil || got != "GET /x" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	for what, of := range map[string]*http.Client{"no server": through("t"), "no tunnel": through("t", lacks), "another target": through("other", has, lacks)} {
		if _, err := get(t, of, "/x"); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", what, err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	open, err := through("t", has, has).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	close(stop)
	if _, err := io.ReadAll(open.Body); err == nil {
		t.Error("the response ends without an error")
	}
}
