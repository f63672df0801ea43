package store

import (
	"context"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type outageKey struct{}

// WithOutage returns a context that remembers that etcd did not answer what is done in
// it. What was decided for want of an answer can be told from what was decided: ask
// [Outage].
func WithOutage(ctx context.Context) context.Context {
	return context.WithValue(ctx, outageKey{}, new(atomic.Pointer[error]))
}

// Outage returns the error, an API status, that a refusal in this context may be owed to;
// nil if there is none.
func Outage(ctx context.Context) error {
	note, ok := ctx.Value(outageKey{}).(*atomic.Pointer[error])
	if !ok {
		return nil
	}
	if err := note.Load(); err != nil {
		return *err
	}
	return nil
}

// noteOutage remembers err in a context of [WithOutage].
func noteOutage(ctx context.Context, err error) {
	note, ok := ctx.Value(outageKey{}).(*atomic.Pointer[error])
	if !ok {
		return
	}
	if !apierrors.IsServiceUnavailable(err) {
		err = unavailable("what the request is decided on cannot be read: " + err.Error() + "; try again")
	}
	note.Store(&err)
}
