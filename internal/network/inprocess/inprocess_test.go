package inprocess

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
)

// A response of a handler that panics is never complete and successful, even if the panic is
// in the middle of the response.
func TestPanics(t *testing.T) {
	for name, tc := range map[string]struct {
		before string // part of the response before the panic
		status int
	}{
		"before the answer": {"", http.StatusInternalServerError},
		"in the answer":     {"part", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			var running sync.WaitGroup
			transport := &Transport{Stop: context.Background(), Running: &running, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tc.before != "" {
					_, _ = io.WriteString(w, tc.before)
				}
				panic(http.ErrAbortHandler)
			})}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kcp/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.status || string(body) != tc.before || err == nil {
				t.Errorf("status %d, body %q, error %v", resp.StatusCode, body, err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
			running.Wait()
		})
	}
}

// A request whose response is not read ends when the server stops, and when the caller
// cancels it.
func TestUnread(t *testing.T) {
	for name, end := range map[string]func(stop, leave func()){
		"the server stops":   func(stop, _ func()) { stop() },
		"the caller gave up": func(_, leave func()) { leave() },
	} {
		t.Run(name, func(t *testing.T) {
			serving, stop := context.WithCancel(t.Context())
			defer stop()
			calling, leave := context.WithCancel(t.Context())
			defer leave()
			var running sync.WaitGroup
			transport := &Transport{Stop: serving, Running: &running, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for _, err := io.WriteString(w, "more"); err == nil; _, err = io.WriteString(w, "more") {
				}
			})}
			req, err := http.NewRequestWithContext(calling, http.MethodGet, "http://kcp/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			end(stop, leave)
			running.Wait()
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("half an answer looks whole")
			}
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
