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
)

type (
	// An Operation is what those choose who run a server: certificates, audit,
	// tracing, encryption at rest, and limits.
	Operation = server.Operation
	// Encryption says how objects are encrypted in etcd.
	Encryption = server.Encryption
)

// DefaultOperation returns the choices that the zero value of an [Operation] stands
// for, to begin from: the options of Kubernetes have no useful zero value.
func DefaultOperation() Operation { return server.DefaultOperation() }

// otherAddress returns what to do when nobody can listen at an address.
func otherAddress(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "it is no address of this machine; choose one that is with --bind-address, or 0.0.0.0 for all"
	case errors.Is(err, fs.ErrPermission):
		return "the system lets you have no port below 1024; choose another with --secure-port"
	default:
		return "stop the program that uses the port, or choose another with --secure-port"
	}
}

// listenAt opens a listener, whose port others may use too if that was chosen.
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
	// Only upstream's options set these on a socket.
	shared := options.SecureServingOptions{
		BindAddress: addr.IP, BindPort: addr.Port, PermitPortSharing: o.PermitPortSharing, PermitAddressSharing: o.PermitAddressSharing,
	}
	if shared.BindAddress == nil { // of all interfaces, as nothing was named
		shared.BindAddress = net.IPv6unspecified
	}
	var info *genericapiserver.SecureServingInfo
	if err := shared.ApplyTo(&info); err != nil {
		return nil, err
	}
	return info.Listener, nil
}
