package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

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

// Private transports of one tenant share no connections: each has its own client certificate.
func TestPrivateConnectionsAreNotShared(t *testing.T) {
	type arrival struct {
		from string
		sent []byte // the client certificate
	}
	var last arrival
	h := newHook(t, func(w http.ResponseWriter, req *http.Request) {
		last = arrival{from: req.RemoteAddr}
		if sent := req.TLS.PeerCertificates; len(sent) > 0 {
			last.sent = sent[0].Raw
		}
		hello(w, req)
	})
	h.TLS.ClientAuth = tls.RequestClientCert
	d := newRelays(t, RelayLimits{})
	own := func() (*tls.Certificate, error) { return &h.TLS.Certificates[0], nil }
	seen := map[string]bool{}
	for _, certificate := range []func() (*tls.Certificate, error){own, nil, own, nil} {
		r, err := d.Private("a", h.ca, certificate)
		if err != nil {
			t.Fatal(err)
		}
		var from string
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.at("127.0.0.1"), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := r.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if from != "" && last.from != from {
				t.Error("a transport does not reuse its connection")
			}
			from = last.from
			if (certificate == nil) != (last.sent == nil) {
				t.Errorf("the client certificate has %d bytes", len(last.sent))
			}
		}
		if seen[from] {
			t.Error("two transports share a connection")
		}
		seen[from] = true
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
