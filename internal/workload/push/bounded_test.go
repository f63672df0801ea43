package push

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/unforked/kcp"
)

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A physical cluster that never ends its answer does not fill the memory of the server.
func TestResponsesAreBounded(t *testing.T) {
	for _, c := range []struct {
		url     string
		reading *atomic.Int64
		size    int64
		want    string
	}{
		{"https://x/api", &atomic.Int64{}, mostBytes, "more than 8192 KiB"}, {"https://x/api?watch=true", &atomic.Int64{}, mostBytes, ""},
		{"https://x/api", nil, mostProbe, "more than 256 KiB"}, {"https://x/api?watch=true", nil, mostProbe, "more than 256 KiB"},
	} {
		url, want := c.url, c.want
		through := bounded{through: answers(func(*http.Request) (*http.Response, error) {
			return &http.Response{Body: io.NopCloser(io.MultiReader(io.LimitReader(endless{}, c.size), strings.NewReader("the rest")))}, nil
		}), reading: c.reading}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := through.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if want == "" && (err != nil || !bytes.HasSuffix(got, []byte("the rest"))) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %d bytes, %v", url, len(got), err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The responses that are being read for the physical clusters of a tenant are bounded together.
func TestReadingIsBounded(t *testing.T) {
	var reading atomic.Int64
	through := bounded{answers(func(*http.Request) (*http.Response, error) { return &http.Response{Body: io.NopCloser(endless{})}, nil }), &reading}
	var open []io.Closer
	for i := range mostReading/mostBytes + 1 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := through.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp.Body)
		_, err = io.CopyN(io.Discard, resp.Body, mostBytes)
		if last := i == mostReading/mostBytes; kcp.IsBusy(err) != last || !last && err != nil {
			t.Fatalf("response %d: %v", i, err)
		}
	}
	for _, body := range append(open, open[0]) { // one of them twice
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := reading.Load(); n != 0 {
		t.Errorf("%d bytes are counted after the end", n)
	}
}

// events are a body that repeats an event.
type events struct {
	event string
	at    int
}

func (e *events) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		of := copy(p[n:], e.event[e.at:])
		n, e.at = n+of, (e.at+of)%len(e.event)
	}
	return n, nil
}

func (*events) Close() error { return nil }

// The events of watches that are being read for the physical clusters of a tenant are bounded together, with
// the other responses. A watch may have any number of them.
func TestEventsAreBounded(t *testing.T) {
	event := strings.Repeat("x", mostBytes-1)
	for name, c := range map[string]struct {
		body    io.ReadCloser
		watches int
		busy    bool
	}{
		"many events":                {&events{event: event + "\n"}, 1, false},
		"an event without end":       {&events{event: event}, 1, true},
		"an event of each cluster":   {&events{event: event + "x"}, mostReading/mostBytes + 1, true},
		"ended events, each of them": {&events{event: event + "\n"}, mostReading/mostBytes + 1, false},
	} {
		var reading atomic.Int64
		through := bounded{answers(func(*http.Request) (*http.Response, error) { return &http.Response{Body: c.body}, nil }), &reading}
		var open []io.Closer
		var err error
		for range c.watches {
			req, failed := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api?watch=true", nil)
			if failed != nil {
				t.Fatal(failed)
			}
			resp, failed := through.RoundTrip(req)
			if failed != nil {
				t.Fatal(failed)
			}
			open = append(open, resp.Body)
			size := int64(mostBytes + 1) // an event counts until the next one is read
			if c.watches == 1 {
				size = 2 * mostReading
			}
			if _, failed := io.CopyN(io.Discard, resp.Body, size); failed != nil {
				err = failed
			}
		}
		if kcp.IsBusy(err) != c.busy || !c.busy && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, body := range append(open, open[0]) { // one of them twice
			if err := body.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := reading.Load(); n != 0 {
			t.Errorf("%s: %d bytes are counted after the end", name, n)
		}
	}
}
