package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/dial"
)

// egress are the flags about what logical clusters may have the server call.
type egress struct{ allow, deny []string }

func (e *egress) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&e.allow, dial.AllowFlag, nil, "CIDRs of addresses that webhooks, identity providers and mounts of logical clusters may be at although they are private or on this machine. The narrowest range decides.")
	f.StringSliceVar(&e.deny, dial.DenyFlag, nil, "CIDRs of addresses that webhooks, identity providers and mounts of logical clusters may not be at. The narrowest range decides.")
}

// apply gives the server what the flags say.
func (e *egress) apply(s *kcp.Server) error {
	ranges := func(flag string, values []string) ([]netip.Prefix, error) {
		all, err := dial.ParseRanges(values)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		return all, nil
	}
	var allowErr, denyErr error
	s.EgressAllow, allowErr = ranges(dial.AllowFlag, e.allow)
	s.EgressDeny, denyErr = ranges(dial.DenyFlag, e.deny)
	return errors.Join(allowErr, denyErr)
}
