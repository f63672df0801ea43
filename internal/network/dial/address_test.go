package dial

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ranges(t testing.TB, texts ...string) []netip.Prefix {
	t.Helper()
	p, err := ParseRanges(texts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Public addresses are allowed, private ones need a flag, and some addresses are never allowed.
// The narrowest range decides.
func TestAddresses(t *testing.T) {
	everything := []string{"0.0.0.0/0", "::/0", "127.0.0.0/8", "169.254.0.0/16", "169.254.169.254", "fe80::/10", "0.0.0.0", "::", "224.0.0.1", "fd00:ec2::254", "100.100.100.200"}
	for _, c := range []struct {
		addr        string
		allow, deny []string
		why         string // part of the refusal; empty if it may be called
	}{
		{addr: "8.8.8.8"},
		{addr: "2606:4700::1111"},
		{addr: "172.32.0.1"},
		{addr: "100.128.0.1"},
		{addr: "127.0.0.1", why: "127.0.0.1 is on the machine of the server (127.0.0.0/8); the administrator of the server can allow it with --tenant-egress-allow-cidrs=127.0.0.1/32"},
		{addr: "127.255.255.254", why: "on the machine of the server"},
		{addr: "::1", why: "::1 is on the machine of the server (::1/128); the administrator of the server can allow it with --tenant-egress-allow-cidrs=::1/128"},
		{addr: "10.0.0.1", why: "is private (10.0.0.0/8)"},
		{addr: "172.16.0.1", why: "is private"},
		{addr: "172.31.255.255", why: "is private"},
		{addr: "192.168.1.1", why: "is private"},
		{addr: "100.64.0.1", why: "is private to a provider"},
		{addr: "fd12::1", why: "is private (fc00::/7)"},
		{addr: "192.0.2.1", why: "documentation"},
		{addr: "2001::1", why: "tunnel"},
		// Other notations of the same addresses.
		{addr: "::ffff:127.0.0.1", why: "127.0.0.1 is on the machine of the server"},
		{addr: "::ffff:10.0.0.1", why: "10.0.0.1 is private"},
		{addr: "::ffff:8.8.8.8"},
		{addr: "::127.0.0.1", why: "it stands for 127.0.0.1"},
		{addr: "::ffff:0:7f00:1", why: "it stands for 127.0.0.1"},
		{addr: "64:ff9b::7f00:1", why: "it stands for 127.0.0.1"},
		{addr: "64:ff9b::a9fe:a9fe", why: "it stands for 169.254.169.254"},
		{addr: "64:ff9b::808:808"},
		{addr: "64:ff9b:1::7f00:1", why: "local-use translation"},
		{addr: "2002:7f00:1::", why: "it stands for 127.0.0.1"},
		{addr: "2002:808:808::"},
		{addr: "::1%lo", why: "on the machine"},
		{addr: "fe80::1%eth0", why: "link-local"},
		// Addresses that no flag allows.
		{addr: "169.254.169.254", allow: everything, why: "is link-local, where clouds hand out credentials (169.254.0.0/16), and no flag changes that"},
		{addr: "::ffff:169.254.169.254", allow: everything, why: "link-local"},
		{addr: "64:ff9b::a9fe:a9fe", allow: append(everything, "64:ff9b::/96"), why: "link-local"},
		{addr: "fe80::1", allow: everything, why: "link-local"},
		{addr: "0.0.0.0", allow: everything, why: "unspecified"},
		{addr: "0.1.2.3", allow: everything, why: "unspecified"},
		{addr: "::", allow: everything, why: "unspecified"},
		{addr: "::ffff:0.0.0.0", allow: everything, why: "unspecified"},
		{addr: "224.0.0.1", allow: everything, why: "multicast"},
		{addr: "ff02::1", allow: everything, why: "multicast"},
		{addr: "255.255.255.255", allow: everything, why: "broadcast"},
		{addr: "fd00:ec2::254", allow: everything, why: "metadata"},
		{addr: "100.100.100.200", allow: everything, why: "metadata"},
		{addr: "168.63.129.16", allow: everything, why: "metadata"},
		// The narrowest range decides.
		{addr: "127.0.0.1", allow: []string{"127.0.0.1"}},
		{addr: "::ffff:127.0.0.1", allow: []string{"127.0.0.1"}},
		{addr: "64:ff9b::7f00:1", allow: []string{"127.0.0.0/8"}},
		{addr: "127.0.0.2", allow: []string{"127.0.0.1"}, why: "on the machine"},
		{addr: "127.0.0.1", allow: []string{"127.0.0.0/8"}},
		{addr: "127.0.0.1", allow: []string{"0.0.0.0/0"}, why: "on the machine"},
		{addr: "10.1.2.3", allow: []string{"10.1.0.0/16"}},
		{addr: "10.1.2.3", allow: []string{"10.1.0.0/16"}, deny: []string{"10.1.2.0/24"}, why: "10.1.2.3 is denied by --tenant-egress-deny-cidrs=10.1.2.0/24"},
		{addr: "10.1.2.3", allow: []string{"10.1.2.3"}, deny: []string{"10.1.2.0/24"}},
		{addr: "10.1.2.3", allow: []string{"10.1.2.0/24"}, deny: []string{"10.1.2.0/24"}, why: "is denied"},
		{addr: "8.8.8.8", deny: []string{"0.0.0.0/0"}, why: "is denied by --tenant-egress-deny-cidrs=0.0.0.0/0; the administrator of the server can make an exception with a narrower range in --tenant-egress-allow-cidrs"},
		{addr: "8.8.8.8", allow: []string{"8.8.8.0/24"}, deny: []string{"0.0.0.0/0"}},
	} {
		why := newRules(ranges(t, c.allow...), ranges(t, c.deny...)).check(netip.MustParseAddr(c.addr))
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s with %v allowed and %v denied: got %q, want %q", c.addr, c.allow, c.deny, why, c.why)
		}
	}
	if why := newRules(nil, nil).check(netip.Addr{}); why == "" {
		t.Error("no address may be called")
	}
}

// All notations of a refused address are refused. No allowed range allows addresses that are
// never called.
func FuzzAddresses(f *testing.F) {
	for _, a := range []string{"127.0.0.1", "::1", "fe80::1%1", "64:ff9b::7f00:1", "2002:a00:1::", "::ffff:10.0.0.1", "8.8.8.8", "::"} {
		f.Add(a)
	}
	closed := newRules(nil, nil)
	open := newRules([]netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"), netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("169.254.0.0/16"),
	}, nil)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return
		}
		plain := a.Unmap().WithZone("")
		if plain.IsLinkLocalUnicast() || plain.IsMulticast() || plain.IsUnspecified() {
			if open.check(a) == "" {
				t.Errorf("%s may be called", a)
			}
		}
		if (plain.IsPrivate() || plain.IsLoopback() || !plain.IsGlobalUnicast()) && closed.check(a) == "" {
			t.Errorf("%s may be called by default", a)
		}
		if !plain.Is4() {
			return
		}
		b := plain.As4()
		nat64 := netip.MustParseAddr("64:ff9b::").As16()
		copy(nat64[12:], b[:])
		sixToFour := netip.MustParseAddr("2002::").As16()
		copy(sixToFour[2:], b[:])
		for _, other := range []netip.Addr{netip.AddrFrom16(plain.As16()), netip.AddrFrom16(nat64), netip.AddrFrom16(sixToFour)} {
			if (closed.check(plain) == "") != (closed.check(other) == "") {
				t.Errorf("%s and %s, which stands for it, are treated differently", plain, other)
			}
		}
	})
}

func TestParseRanges(t *testing.T) {
	got, err := ParseRanges([]string{"10.1.0.0/16", "127.0.0.1", " fd12::/64", "::1", "::ffff:1.2.3.4"})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, p := range got {
		texts = append(texts, p.String())
	}
	if diff := cmp.Diff([]string{"10.1.0.0/16", "127.0.0.1/32", "fd12::/64", "::1/128", "1.2.3.4/32"}, texts); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"localhost":         `"localhost" is not a range of IP addresses; write it like`,
		"":                  `"" is not a range`,
		"fe80::1%eth0":      "is not a range",
		"10.1.2.3/8":        `"10.1.2.3/8" begins in the middle of a range; write 10.0.0.0/8, or 10.1.2.3 for the one address`,
		"::ffff:10.0.0.0/8": "write it as IPv4",
	} {
		if _, err := ParseRanges([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// The server recognizes its own addresses and names.
func TestOwnAddresses(t *testing.T) {
	lookup := func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if host != "etcd.example.com" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("10.0.0.7")}, nil
	}
	for _, c := range []struct {
		at, listens string
		mine        bool
	}{
		{"127.0.0.1:6443", "127.0.0.1:6443", true},
		{"[::ffff:127.0.0.1]:6443", "127.0.0.1:6443", true},
		{"127.0.0.1:6444", "127.0.0.1:6443", false},
		{"10.0.0.7:6443", "127.0.0.1:6443", false},
		{"127.0.0.1:6443", "0.0.0.0:6443", true},
		{"127.0.0.1:6443", "[::]:6443", true},
		{"127.0.0.1:6443", ":6443", true},
		{"8.8.8.8:6443", "0.0.0.0:6443", false},
		{"10.0.0.7:2379", "etcd.example.com:2379", true},
		{"10.0.0.8:2379", "etcd.example.com:2379", false},
	} {
		mine, err := own(t.Context(), netip.MustParseAddrPort(c.at), []string{c.listens}, lookup)
		if err != nil || mine != c.mine {
			t.Errorf("%s of a server at %s: %v, %v", c.at, c.listens, mine, err)
		}
	}
	if _, err := own(t.Context(), netip.MustParseAddrPort("10.0.0.7:2379"), []string{"other.example.com:2379"}, lookup); err == nil {
		t.Error("an etcd that cannot be found is nobody")
	}
}
