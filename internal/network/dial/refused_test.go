package dial

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

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
