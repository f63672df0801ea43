package kcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/encryption"
)

type (
	// An Operation holds the options for operators: certificates, audit, tracing,
	// encryption at rest, and limits.
	Operation = server.Operation
	// Encryption configures the encryption of objects in etcd.
	Encryption = encryption.Options
)

// DefaultOperation returns an [Operation] with all defaults set. Change its fields: the
// zero values of the options inside it do not work.
func DefaultOperation() Operation { return server.DefaultOperation() }

// otherAddress returns advice for an error of listening at an address.
func otherAddress(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine has no such address; choose another with --bind-address, or 0.0.0.0 for all"
	case errors.Is(err, fs.ErrPermission):
		return "ports below 1024 need special privileges; choose another with --secure-port"
	default:
		return "stop the program that uses the port, or choose another with --secure-port"
	}
}

// listenAt opens a listener. It shares the port or address with other processes if the
// options permit it.
func listenAt(ctx context.Context, at string, o *options.SecureServingOptions) (net.Listener, error) {
	if o == nil || !o.PermitPortSharing && !o.PermitAddressSharing {
		return new(net.ListenConfig).Listen(ctx, "tcp", at)
	}
	addr, err := net.ResolveTCPAddr("tcp", at)
	if err != nil {
		return nil, err
	}
	if addr.Port == 0 {
		return nil, fmt.Errorf("%q has no port that can be shared; give a number to --secure-port, or leave out --permit-port-sharing and --permit-address-sharing", at)
	}
	// Upstream sets these socket options only in SecureServingOptions.
	shared := options.SecureServingOptions{
		BindAddress: addr.IP, BindPort: addr.Port, PermitPortSharing: o.PermitPortSharing, PermitAddressSharing: o.PermitAddressSharing,
	}
	if shared.BindAddress == nil { // all interfaces
		shared.BindAddress = net.IPv6unspecified
	}
	var info *genericapiserver.SecureServingInfo
	if err := shared.ApplyTo(&info); err != nil {
		return nil, err
	}
	return info.Listener, nil
}
