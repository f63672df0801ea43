package dial

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

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

// All notations of addresses of the server's machine are refused. The error has the address, the
// rule, and the flag that allows the address.
func TestRefused(t *testing.T) {
	h := newHook(t, hello)
	d := newDialer(t, Options{Allow: []netip.Prefix{}})
	_, err := d.get(t.Context(), "a", h, h.URL)
	wantError(t, err, "refusing to call "+h.addr.String()+" for a logical cluster: 127.0.0.1 is on the machine of the server (127.0.0.0/8)",
		"--tenant-egress-allow-cidrs=127.0.0.1/32")
	var refused *Refused
	if !errors.As(err, &refused) || refused.Addr != h.addr {
		t.Errorf("%#v is no refusal of %s", err, h.addr)
	}
	for _, host := range []string{
		"localhost", "localhost.", "LOCALHOST", "127.0.0.2", "127.1", "2130706433", "0x7f000001", "017700000001", "0.0.0.0", "0",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::7f00:1", "::1%25lo", "fe80::1%25lo",
	} {
		_, err := d.get(t.Context(), "a", h, h.at(host))
		if err == nil {
			t.Errorf("%s is called", host)
		}
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls came through", n)
	}
}

func TestURLs(t *testing.T) {
	h := newHook(t, hello)
	d := newDialer(t, Options{})
	for url, want := range map[string]string{
		"http://" + h.addr.String():                  `scheme "http" is not supported; use https`,
		"https://kcp:secret@" + h.addr.String():      "the URL contains a user",
		"https://127.0.0.1:0":                        `"0" is not a port`,
		"https://127.0.0.1:70000":                    `"70000" is not a port`,
		"https://:443":                               "",
		"https://" + strings.Repeat("a", 300) + ".x": "",
	} {
		if _, err := d.get(t.Context(), "a", h, url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", url, err, want)
		}
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls came through", n)
	}
	if _, err := d.For("a", []byte("no certificate")); err == nil {
		t.Error("a bundle of nothing is taken")
	}
	if _, err := d.For("a", []byte(" \n")); err != nil {
		t.Error(err)
	}
	untrusted := &hook{Server: h.Server, addr: h.addr}
	_, err := d.get(t.Context(), "a", untrusted, h.URL)
	wantError(t, err, "certificate signed by unknown authority")
}

// Allowed ranges do not allow the server's own addresses.
func TestOwn(t *testing.T) {
	h := newHook(t, hello)
	_, port, _ := net.SplitHostPort(h.addr.String())
	for _, listens := range []string{h.addr.String(), ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		d := newDialer(t, Options{Own: []string{"127.0.0.1:1", listens}})
		for _, host := range []string{"127.0.0.1", "localhost"} {
			_, err := d.get(t.Context(), "a", h, h.at(host))
			wantRefused(t, err, "it is an address of the server or its etcd, and no flag changes that")
		}
	}
	if n := h.calls.Load(); n != 0 {
		t.Errorf("%d calls came through", n)
	}
}

// names is a DNS server that answers with the given addresses in turn.
func names(t *testing.T, turns ...[]string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		b := make([]byte, 1500)
		for turn := 0; ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				for _, a := range turns[min(turn, len(turns)-1)] {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
						Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
					})
				}
				turn++
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	})
	t.Cleanup(func() { _ = conn.Close(); done.Wait() })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// The rules apply to the address of the connection, so a changing name cannot bypass them.
func TestRebinding(t *testing.T) {
	h := newHook(t, hello) // its certificate is for example.com, too
	d := newDialer(t, Options{
		Allow:    ranges(t, "127.0.0.1"),
		Resolver: names(t, []string{"127.0.0.1"}, []string{"127.0.0.2"}, []string{"169.254.169.254"}, []string{"127.0.0.2", "127.0.0.1"}),
	})
	if got, err := d.get(t.Context(), "a", h, h.at("example.com.")); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	for _, want := range []string{"127.0.0.2 is on the machine of the server", "169.254.169.254 is link-local"} {
		d.http.CloseIdleConnections()
		_, err := d.get(t.Context(), "a", h, h.at("example.com."))
		wantRefused(t, err, want)
	}
	d.http.CloseIdleConnections()
	if got, err := d.get(t.Context(), "a", h, h.at("example.com.")); err != nil || got != "hello" {
		t.Errorf("with one good address of two: %q, %v", got, err)
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

// stuck is a hook that answers when the test releases it, or when its caller has disconnected.
func stuck(t *testing.T) (h *hook, reached chan struct{}) {
	t.Helper()
	reached = make(chan struct{}, 100)
	return newHook(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // until then it is not known that the caller has gone
		reached <- struct{}{}
		<-req.Context().Done()
	}), reached
}

// A tenant with hanging calls reaches its limit, without effect for other tenants. Calls end after
// a timeout.
func TestTenantsApart(t *testing.T) {
	hanging, reached := stuck(t)
	h := newHook(t, hello)
	d := newDialer(t, Options{Limits: Limits{TenantCalls: 2, TenantWaiting: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			_, err := d.get(ctx, "a", hanging, hanging.URL)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a call that hangs: %v", err)
			}
		})
	}
	<-reached
	<-reached
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := d.get(ended, "a", h, h.URL)
	wantError(t, err, "logical cluster a has reached its limit of 2 concurrent calls")
	waiting, stop := context.WithCancel(t.Context())
	calls.Go(func() {
		_, err := d.get(waiting, "a", h, h.URL)
		wantError(t, err, "logical cluster a has reached its limit of 2 concurrent calls")
	})
	until(t, func() bool { d.calls.mu.Lock(); defer d.calls.mu.Unlock(); return d.calls.by["a"].calls == 3 })
	_, err = d.get(t.Context(), "a", h, h.URL)
	wantError(t, err, "logical cluster a has 2 calls running and 1 waiting")
	if got, err := d.get(t.Context(), "b", h, h.URL); err != nil || got != "hello" {
		t.Errorf("another tenant's call: %q, %v", got, err)
	}
	stop()
	cancel()
	calls.Wait()
	if got, err := d.get(t.Context(), "a", h, h.URL); err != nil || got != "hello" {
		t.Errorf("after its calls have ended: %q, %v", got, err)
	}
	_, err = newDialer(t, Options{Limits: Limits{Timeout: time.Millisecond}}).get(t.Context(), "a", hanging, hanging.URL)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that nobody ends: %v", err)
	}
}

// until waits for other goroutines, without sleeping.
func until(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("it does not happen")
		}
	}
}

// All tenants together have a limit.
func TestAllTenants(t *testing.T) {
	hanging, reached := stuck(t)
	d := newDialer(t, Options{Limits: Limits{Calls: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() { _, _ = d.get(ctx, "a", hanging, hanging.URL) })
	<-reached
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := d.get(ended, "b", hanging, hanging.URL)
	wantError(t, err, "the server has reached its limit of 1 concurrent calls for logical clusters")
	cancel()
	calls.Wait()
}

// Connections are reused for one tenant and one bundle only.
func TestConnectionsAreNotShared(t *testing.T) {
	var from string
	h := newHook(t, func(w http.ResponseWriter, req *http.Request) {
		if req.TLS.DidResume {
			t.Error("a TLS session is resumed")
		}
		from = req.RemoteAddr
		hello(w, req)
	})
	d := newDialer(t, Options{})
	call := func(tenant cluster.Name, ca []byte) string {
		if _, err := d.get(t.Context(), tenant, &hook{Server: h.Server, ca: ca}, h.URL); err != nil {
			t.Fatal(err)
		}
		return from
	}
	first := call("a", h.ca)
	if again := call("a", h.ca); again != first {
		t.Error("a tenant gets a new connection for each call")
	}
	if call("b", h.ca) == first {
		t.Error("another tenant gets the same connection")
	}
	if call("a", append([]byte("\n"), h.ca...)) == first {
		t.Error("a connection that was verified by another bundle is used")
	}
	h2, err := d.get(t.Context(), "a", h, strings.Replace(h.URL, "127.0.0.1", "localhost", 1))
	if err == nil {
		t.Errorf("a name that the certificate is not for is answered %q", h2)
	}
	if got := idle(t, newDialer(t, Options{Limits: Limits{Idle: 1}}), h); got != 1 {
		t.Errorf("%d idle connections are kept, and 1 may be", got)
	}
}

// idle returns the number of open connections after calls of three tenants.
func idle(t *testing.T, d *Dialer, h *hook) int {
	t.Helper()
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	counted := httptest.NewUnstartedServer(http.HandlerFunc(hello))
	counted.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch s {
		case http.StateNew, http.StateActive, http.StateIdle:
			open[c] = true
		default:
			delete(open, c)
		}
	}
	counted.TLS = &tls.Config{Certificates: h.TLS.Certificates}
	counted.StartTLS()
	t.Cleanup(counted.Close)
	for _, tenant := range []cluster.Name{"a", "b", "c"} {
		if _, err := d.get(t.Context(), tenant, h, counted.URL); err != nil {
			t.Fatal(err)
		}
	}
	n := func() int { mu.Lock(); defer mu.Unlock(); return len(open) }
	until(t, func() bool { return n() <= d.limits.Idle })
	return n()
}

// Close ends hanging calls, and later calls fail.
func TestClose(t *testing.T) {
	hanging, reached := stuck(t)
	d := newDialer(t, Options{})
	result := make(chan error)
	go func() { _, err := d.get(context.Background(), "a", hanging, hanging.URL); result <- err }()
	<-reached
	d.Close()
	wantError(t, <-result, "the server is stopping")
	_, err := d.get(t.Context(), "a", hanging, hanging.URL)
	wantError(t, err, "the server is stopping")
	var asURL *url.Error
	if !errors.As(err, &asURL) || !strings.HasPrefix(asURL.URL, hanging.URL) {
		t.Errorf("%v does not name what the tenant wrote", err)
	}
}
