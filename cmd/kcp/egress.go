package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/network/dial"
)

// egress holds the flags that restrict which addresses the server calls for logical clusters.
type egress struct{ allow, deny []string }

func (e *egress) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&e.allow, dial.AllowFlag, nil, "CIDRs of private or local addresses that the server may call for webhooks, identity providers and mounts of logical clusters. The narrowest range decides.")
	f.StringSliceVar(&e.deny, dial.DenyFlag, nil, "CIDRs of addresses that the server must not call for webhooks, identity providers and mounts of logical clusters. The narrowest range decides.")
}

// apply sets the ranges of the server from the flags.
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
