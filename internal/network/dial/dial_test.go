package dial

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// A hook is a server that a tenant has configured.
type hook struct {
	*httptest.Server
	calls atomic.Int32
	addr  netip.AddrPort
	ca    []byte
}

func newHook(t *testing.T, answer http.HandlerFunc) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h.calls.Add(1)
		answer(w, req)
	}))
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // refused certificates
	h.EnableHTTP2 = true
	h.StartTLS()
	t.Cleanup(h.Close)
	h.addr = netip.MustParseAddrPort(h.Listener.Addr().String())
	h.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	return h
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// at returns the hook's URL with another host.
func (h *hook) at(host string) string {
	_, port, _ := net.SplitHostPort(h.addr.String())
	return "https://" + net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// newDialer returns a dialer that may call this machine.
func newDialer(t *testing.T, o Options) *Dialer {
	t.Helper()
	if o.Allow == nil {
		o.Allow = ranges(t, "127.0.0.0/8", "::1")
	}
	d := New(o)
	t.Cleanup(func() {
		d.Close()
		d.calls.mu.Lock()
		defer d.calls.mu.Unlock()
		if len(d.calls.by) != 0 || d.calls.held != 0 || len(d.calls.all) != 0 {
			t.Errorf("%d tenants, %d calls and %d bytes are counted after the last call", len(d.calls.by), len(d.calls.all), d.calls.held)
		}
	})
	return d
}

// get calls a URL for a tenant and returns the answer.
func (d *Dialer) get(ctx context.Context, tenant cluster.Name, h *hook, url string) (string, error) {
	calls, err := d.For(tenant, h.ca)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("question"))
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: calls}).Do(req)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), errors.Join(err, resp.Body.Close())
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("got %v, want an error with %q", err, p)
		}
	}
}

// wantRefused checks the reason of a refusal, which the error text may not contain.
func wantRefused(t *testing.T, err error, part string) {
	t.Helper()
	var refused *Refused
	if !errors.As(err, &refused) {
		t.Errorf("got %v, want a refusal with %q", err, part)
		return
	}
	wantError(t, refused, part)
}

// A call has no credentials and cookies of the server, does not use its proxy, and has the host
// name of the tenant's URL.
func TestCall(t *testing.T) {
	proxy := newHook(t, hello)
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	t.Setenv("NO_PROXY", "")
	var header http.Header
	var host, body, proto string
	h := newHook(t, func(w http.ResponseWriter, req *http.Request) {
		text, _ := io.ReadAll(req.Body)
		header, host, body, proto = req.Header, req.Host, string(text), req.Proto
		http.SetCookie(w, &http.Cookie{Name: "who", Value: "a"})
		hello(w, req)
	})
	d := newDialer(t, Options{})
	for range 2 {
		got, err := d.get(t.Context(), "a", h, h.URL+"/path?query")
		if err != nil || got != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
		if v := header.Get(name); v != "" {
			t.Errorf("%s: %s", name, v)
		}
	}
	if host != h.addr.String() || body != "question" || proto != "HTTP/1.1" {
		t.Errorf("called as %s, with %q over %s", host, body, proto)
	}
	if n := proxy.calls.Load(); n != 0 {
		t.Errorf("%d calls go through the proxy of the environment", n)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	other := newHook(t, hello)
	d := newDialer(t, Options{})
	for _, code := range []int{301, 302, 303, 307, 308} {
		h := newHook(t, func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, other.URL, code) })
		_, err := d.get(t.Context(), "a", h, h.URL)
		wantError(t, err, "the response is a redirect", "which is not followed; use the final URL")
	}
	if n := other.calls.Load(); n != 0 {
		t.Errorf("%d redirects are followed", n)
	}
}

// The size of responses is limited, also of compressed ones, for each and in total.
func TestLongAnswers(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for b := make([]byte, 1000); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	bomb := func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(make([]byte, 10<<20))
		_ = z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(b.Bytes())
	}
	headers := func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }
	d := newDialer(t, Options{Limits: Limits{Answer: 1 << 16}})
	for _, c := range []struct {
		answer http.HandlerFunc
		want   string
	}{
		{endless, "the response exceeds 65536 bytes"},
		{bomb, "the response exceeds 65536 bytes"},
		{headers, "server response headers exceeded 65536 bytes"},
	} {
		h := newHook(t, c.answer)
		_, err := d.get(t.Context(), "a", h, h.URL)
		wantError(t, err, c.want)
	}
	h := newHook(t, endless)
	_, err := newDialer(t, Options{Limits: Limits{TenantHeld: 1 << 16}}).get(t.Context(), "a", h, h.URL)
	wantError(t, err, "the responses that are being read for logical cluster a exceed 65536 bytes in total")
	_, err = newDialer(t, Options{Limits: Limits{Held: 1 << 16}}).get(t.Context(), "a", h, h.URL)
	wantError(t, err, "the responses that the server is reading for logical clusters exceed their limit")
}

// Retry-After is removed: Kubernetes clients would wait as long as a webhook says.
func TestRetryAfterIsDropped(t *testing.T) {
	h := newHook(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1000000")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	calls, err := newDialer(t, Options{}).For("a", h.ca)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: calls}).Get(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "" {
		t.Errorf("%s, retry after %q", resp.Status, resp.Header.Get("Retry-After"))
	}
}
