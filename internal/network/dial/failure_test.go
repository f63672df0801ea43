package dial

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// The error of a call does not disclose whether a name resolves, to which addresses, or the
// addresses of the server and its DNS.
func TestErrorsNameNoAddresses(t *testing.T) {
	h := newHook(t, hello)
	d := newDialer(t, Options{Allow: []netip.Prefix{}})
	texts := map[string]string{}
	for _, host := range []string{"localhost", "there-is-no-such-host.invalid"} {
		for way, call := range map[string]func(string) error{
			"call":  func(url string) error { _, err := d.get(t.Context(), "a", h, url); return err },
			"relay": func(url string) error { return d.relayError(t, h, url) },
		} {
			err := call(h.at(host))
			if err == nil {
				t.Fatalf("%s of %s: no error", way, host)
			}
			text := strings.ReplaceAll(err.Error(), host, "HOST")
			if strings.Contains(text, "127.0.0") || strings.Contains(text, "lookup") || strings.Contains(text, "::1") {
				t.Errorf("%s of %s: %s", way, host, text)
			}
			if other, ok := texts[way]; ok && other != text {
				t.Errorf("%s tells names from each other: %q, %q", way, text, other)
			}
			texts[way] = text
		}
	}

	// The error does not disclose local addresses.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close() // with a reset
		}
	}()
	open := newDialer(t, Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	err = open.relayError(t, h, "https://localhost:"+port)
	if err == nil || strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "->") {
		t.Errorf("a reset: %v", err)
	}
	var failed *Failed
	if !errors.As(err, &failed) || failed.Unwrap() == nil {
		t.Errorf("%#v has no cause", err)
	}
}

func (d *Dialer) relayError(t *testing.T, h *hook, url string) error {
	t.Helper()
	through, err := d.Relay("a", h.ca, nil)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := through.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}
