package dial

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

func newRelays(t *testing.T, l RelayLimits) *Dialer {
	t.Helper()
	d := New(Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Relays: l})
	t.Cleanup(d.Close)
	return d
}

func (d *Dialer) relayTo(t *testing.T, tenant cluster.Name, h *hook, path string) (*http.Response, error) {
	t.Helper()
	r, err := d.Relay(tenant, h.ca, nil)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.at("127.0.0.1")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.RoundTrip(req)
}

// Response headers have a timeout; bodies have none.
func TestRelayTime(t *testing.T) {
	release := make(chan struct{})
	h := newHook(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/silent" {
			<-req.Context().Done()
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, "late")
	})
	d := newRelays(t, RelayLimits{Header: 50 * time.Millisecond})
	var timeout net.Error
	if _, err := d.relayTo(t, "a", h, "/silent"); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("what is silent: %v", err)
	}
	resp, err := d.relayTo(t, "a", h, "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	close(release)
	if b, err := io.ReadAll(resp.Body); string(b) != "late" || err != nil {
		t.Errorf("what is slow: %q, %v", b, err)
	}
}

// The concurrent requests of one tenant and of all tenants are limited.
func TestRelayPlaces(t *testing.T) {
	h := newHook(t, hello)
	d := newRelays(t, RelayLimits{TenantRequests: 2, Requests: 3})
	var open []*http.Response
	for _, tenant := range []cluster.Name{"a", "a", "b"} {
		resp, err := d.relayTo(t, tenant, h, "/")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	for _, tenant := range []cluster.Name{"a", "b"} {
		if _, err := d.relayTo(t, tenant, h, "/"); !errors.Is(err, ErrBusy) {
			t.Errorf("%s: %v", tenant, err)
		}
	}
	for _, resp := range open {
		_ = resp.Body.Close()
		_ = resp.Body.Close() // once more gives nothing back
	}
	for range 2 {
		resp, err := d.relayTo(t, "b", h, "/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	if len(d.relays.all) != 2 {
		t.Errorf("%d places are taken", len(d.relays.all))
	}
}

// Requests of clients, the work of the server and its probes have limits of their own. Work and probes share
// connections.
func TestWorkPlaces(t *testing.T) {
	var from []string
	h := newHook(t, func(w http.ResponseWriter, req *http.Request) { from = append(from, req.RemoteAddr); hello(w, req) })
	d := newRelays(t, RelayLimits{TenantRequests: 1, TenantWork: 2, TenantProbes: 1})
	work, probes, err := d.Work("a", h.ca, nil)
	if err != nil {
		t.Fatal(err)
	}
	users, err := d.Private("a", h.ca, nil)
	if err != nil {
		t.Fatal(err)
	}
	through := func(r http.RoundTripper) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.at("127.0.0.1"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.RoundTrip(req)
	}
	for _, use := range []struct {
		through http.RoundTripper
		most    int
	}{{users, 1}, {work, 2}, {probes, 1}} {
		for range use.most {
			resp, err := through(use.through)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
		}
		if _, err := through(use.through); !errors.Is(err, ErrBusy) {
			t.Errorf("one more than %d: %v", use.most, err)
		}
	}
	from = nil
	fresh := newRelays(t, RelayLimits{})
	if work, probes, err = fresh.Work("a", h.ca, nil); err != nil {
		t.Fatal(err)
	}
	for _, r := range []http.RoundTripper{work, probes} {
		resp, err := through(r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if from[0] != from[1] {
		t.Error("work and probes share no connection")
	}
}

// An unreadable certificate is an error of the request. Connections with a certificate are not
// used for other calls.
func TestRelayCertificate(t *testing.T) {
	h := newHook(t, hello)
	h.TLS.ClientAuth = tls.RequestClientCert
	d := newRelays(t, RelayLimits{})
	r, err := d.Relay("a", h.ca, func() (*tls.Certificate, error) { return nil, errors.New("no such file") })
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.at("127.0.0.1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := r.RoundTrip(req); err == nil {
		_ = resp.Body.Close()
		t.Error("it is passed on without a certificate")
	}
}
