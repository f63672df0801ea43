package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Server flags that error messages name.
const (
	// AllowFlag allows addresses that are denied to tenants by default.
	AllowFlag = "tenant-egress-allow-cidrs"
	// DenyFlag denies addresses that are allowed to tenants by default.
	DenyFlag = "tenant-egress-deny-cidrs"
)

// A kind is a range of special-purpose addresses. Errors quote what: it completes
// a sentence that begins with the address.
type kind struct {
	netip.Prefix
	what string
}

// never returns the addresses that no flag allows: local and metadata services that
// trust every client, and addresses that are no unicast destination.
func never() []kind {
	return []kind{
		{netip.MustParsePrefix("0.0.0.0/8"), "is unspecified, which means this machine"},
		{netip.MustParsePrefix("::/128"), "is unspecified, which means this machine"},
		{netip.MustParsePrefix("169.254.0.0/16"), "is link-local, where clouds hand out credentials"},
		{netip.MustParsePrefix("fe80::/10"), "is link-local"},
		{netip.MustParsePrefix("fd00:ec2::/32"), "is a metadata service, which hands out credentials"},
		{netip.MustParsePrefix("fd20:ce::/32"), "is a metadata service, which hands out credentials"},
		{netip.MustParsePrefix("100.100.100.200/32"), "is a metadata service, which hands out credentials"},
		{netip.MustParsePrefix("168.63.129.16/32"), "is a metadata service, which hands out credentials"},
		{netip.MustParsePrefix("224.0.0.0/4"), "is multicast"},
		{netip.MustParsePrefix("ff00::/8"), "is multicast"},
		{netip.MustParsePrefix("240.0.0.0/4"), "is reserved or broadcast"},
	}
}

// inside returns the addresses that only a flag allows: they are local to a network,
// or reserved for special purposes.
func inside() []kind {
	return []kind{
		{netip.MustParsePrefix("127.0.0.0/8"), "is on the machine of the server"},
		{netip.MustParsePrefix("::1/128"), "is on the machine of the server"},
		{netip.MustParsePrefix("10.0.0.0/8"), "is private"},
		{netip.MustParsePrefix("172.16.0.0/12"), "is private"},
		{netip.MustParsePrefix("192.168.0.0/16"), "is private"},
		{netip.MustParsePrefix("100.64.0.0/10"), "is private to a provider"},
		{netip.MustParsePrefix("fc00::/7"), "is private"},
		{netip.MustParsePrefix("fec0::/10"), "is private"},
		{netip.MustParsePrefix("64:ff9b:1::/48"), "is a local-use translation to IPv4"},
		{netip.MustParsePrefix("2001::/32"), "is a tunnel to IPv4 (Teredo)"},
		{netip.MustParsePrefix("192.0.0.0/24"), "is set aside for protocols"},
		{netip.MustParsePrefix("192.0.2.0/24"), "is set aside for documentation"},
		{netip.MustParsePrefix("198.18.0.0/15"), "is set aside for benchmarks"},
		{netip.MustParsePrefix("198.51.100.0/24"), "is set aside for documentation"},
		{netip.MustParsePrefix("203.0.113.0/24"), "is set aside for documentation"},
		{netip.MustParsePrefix("2001:db8::/32"), "is set aside for documentation"},
		{netip.MustParsePrefix("100::/64"), "is set aside for discarding"},
	}
}

// A Refused is the error of a call to a denied address. Why holds the reason and the
// remedy.
type Refused struct {
	Addr netip.AddrPort
	Why  string
}

// Error implements error.
func (e *Refused) Error() string {
	return fmt.Sprintf("refusing to call %s for a logical cluster: %s", e.Addr, e.Why)
}

// rules decide which addresses tenants may call. They are immutable.
type rules struct {
	never, inside []kind
	allow, deny   []netip.Prefix
}

func newRules(allow, deny []netip.Prefix) rules {
	return rules{never(), inside(), allow, deny}
}

// check returns the reason why a is denied, empty if it is allowed. If a embeds an IPv4
// address, that address must be allowed too. The narrowest range that contains an address
// decides. Among equally narrow ranges, the deny flag precedes the allow flag, which
// precedes the defaults.
func (r rules) check(a netip.Addr) (why string) {
	a = a.Unmap().WithZone("")
	if why := r.checkOne(a); why != "" {
		return why
	}
	if within, ok := embedded(a); ok {
		if why := r.checkOne(within); why != "" {
			return fmt.Sprintf("it stands for %s; %s", within, why)
		}
	}
	return ""
}

func (r rules) checkOne(a netip.Addr) (why string) {
	if !a.IsValid() {
		return "it is not an IP address"
	}
	for _, k := range r.never {
		if k.Contains(a) {
			return fmt.Sprintf("%s %s (%s), and no flag changes that", a, k.what, k.Prefix)
		}
	}
	narrowest := -1
	for _, k := range r.inside {
		if k.Contains(a) && k.Bits() > narrowest {
			narrowest = k.Bits()
			why = fmt.Sprintf("%s %s (%s); the administrator of the server can allow it with --%s=%s",
				a, k.what, k.Prefix, AllowFlag, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, p := range r.allow {
		if p.Contains(a) && p.Bits() >= narrowest {
			narrowest, why = p.Bits(), ""
		}
	}
	for _, p := range r.deny {
		if p.Contains(a) && p.Bits() >= narrowest {
			narrowest = p.Bits()
			why = fmt.Sprintf("%s is denied by --%s=%s; the administrator of the server can make an exception with a narrower range in --%s",
				a, DenyFlag, p, AllowFlag)
		}
	}
	return why
}

// embedded returns the IPv4 address that a embeds, as NAT64, 6to4, SIIT and
// IPv4-compatible addresses do.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	at := func(i int) (netip.Addr, bool) { return netip.AddrFrom4([4]byte(b[i : i+4])), true }
	for _, prefix := range []string{"64:ff9b::/96", "::ffff:0:0:0/96"} {
		if netip.MustParsePrefix(prefix).Contains(a) {
			return at(12)
		}
	}
	switch {
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return at(2)
	case netip.MustParsePrefix("::/96").Contains(a) && !a.IsLoopback() && !a.IsUnspecified():
		return at(12)
	}
	return netip.Addr{}, false
}

// own reports whether at is one of the server's own addresses. Each of addresses is
// host:port, where host is an IP address, a name, or empty for all interfaces.
func own(ctx context.Context, at netip.AddrPort, addresses []string, lookup func(context.Context, string, string) ([]netip.Addr, error)) (bool, error) {
	for _, text := range addresses {
		host, port, err := net.SplitHostPort(text)
		if err != nil {
			return false, err
		}
		if port != strconv.Itoa(int(at.Port())) {
			continue
		}
		ips, err := addressesOf(ctx, host, lookup)
		if err != nil {
			return false, err
		}
		for _, ip := range ips {
			if ip.Unmap().WithZone("") == at.Addr().Unmap().WithZone("") {
				return true, nil
			}
		}
	}
	return false, nil
}

// addressesOf returns the IP addresses of a server that listens at host. An unspecified
// or empty host means the addresses of all local interfaces.
func addressesOf(ctx context.Context, host string, lookup func(context.Context, string, string) ([]netip.Addr, error)) ([]netip.Addr, error) {
	ip, err := netip.ParseAddr(host)
	if host != "" && err != nil {
		return lookup(ctx, "ip", host)
	}
	if host != "" && !ip.IsUnspecified() {
		return []netip.Addr{ip}, nil
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, l := range local {
		if n, ok := l.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				ips = append(ips, ip)
			}
		}
	}
	return ips, nil
}

// ParseRanges parses the values of a flag, each a range in CIDR notation or a single
// IP address. The error joins one error per invalid value.
func ParseRanges(values []string) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	var errs []error
	for _, text := range values {
		text = strings.TrimSpace(text)
		p, err := netip.ParsePrefix(text)
		if a, bare := netip.ParseAddr(text); bare == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%q is not a range of IP addresses; write it like 10.1.0.0/16, fd12::/64 or 127.0.0.1", text))
		case p.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("%q is a range of IPv4 written in IPv6; write it as IPv4", text))
		case p != p.Masked():
			errs = append(errs, fmt.Errorf("%q begins in the middle of a range; write %s, or %s for the one address", text, p.Masked(), p.Addr()))
		default:
			ranges = append(ranges, p)
		}
	}
	return ranges, errors.Join(errs...)
}
