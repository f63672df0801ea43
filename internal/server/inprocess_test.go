package server

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
)

// A handler that panics before it answers has failed, and one that does so in the
// middle of its answer has not finished it: neither looks like success.
func TestInProcessPanics(t *testing.T) {
	for name, tc := range map[string]struct {
		before string // what is answered before the panic
		status int
	}{
		"before the answer": {"", http.StatusInternalServerError},
		"in the answer":     {"part", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			var running sync.WaitGroup
			transport := &inProcess{stop: context.Background(), running: &running, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
