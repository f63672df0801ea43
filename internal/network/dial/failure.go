package dial

import (
	"context"
	"errors"
	"fmt"
	"net"

	"k8s.io/klog/v2"
)

// A Failed is the error of a call that got no response. Its text is safe to show to
// tenants and their users: it contains no resolved addresses and none of the server or
// its DNS. The log holds the details, at level 2.
type Failed struct {
	text    string
	cause   error
	timeout bool
}

// Error implements error.
func (e *Failed) Error() string { return e.text }

// Unwrap returns the cause. Its text must not be shown to tenants.
func (e *Failed) Unwrap() error { return e.cause }

// Timeout reports whether the call timed out, as [net.Error] does.
func (e *Failed) Timeout() bool { return e.timeout }

// failed turns err into an error whose text is safe to show to the tenant. Names that do
// not resolve and names with denied addresses get the same text, so that tenants cannot
// probe the DNS of the server. Errors of other kinds are returned as they are.
func failed(ctx context.Context, at endpoint, err error) error {
	var known *Failed
	if errors.As(err, &known) {
		return known
	}
	var refused *Refused
	var lookup *net.DNSError
	var connection *net.OpError
	literal := net.ParseIP(at.host) != nil
	f := &Failed{cause: err}
	where := net.JoinHostPort(at.host, at.port)
	switch {
	case errors.As(err, &refused) && literal:
		f.text = refused.Error()
	case errors.As(err, &refused), errors.As(err, &lookup):
		f.text = fmt.Sprintf("%s has no address that may be called for a logical cluster; the log of the server says why", where)
	case errors.As(err, &connection):
		f.timeout = connection.Timeout()
		f.text = fmt.Sprintf("connection to %s: %v", where, connection.Err)
	default:
		return err
	}
	klog.FromContext(ctx).V(2).Info("Call for a logical cluster failed", "endpoint", where, "reason", err.Error())
	return f
}
