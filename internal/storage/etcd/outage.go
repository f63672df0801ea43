package etcd

import (
	"context"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type outageKey struct{}

// WithOutage returns a context that records errors of etcd during reads. A refusal after such
// an error is not reliable. [Outage] returns the record.
func WithOutage(ctx context.Context) context.Context {
	return context.WithValue(ctx, outageKey{}, new(atomic.Pointer[error]))
}

// Outage returns the recorded error, an API status, or nil.
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

// NoteOutage records err, or [Undecided] if err is no 503, in a context of [WithOutage].
func NoteOutage(ctx context.Context, err error) {
	note, ok := ctx.Value(outageKey{}).(*atomic.Pointer[error])
	if !ok {
		return
	}
	if !apierrors.IsServiceUnavailable(err) {
		err = Undecided()
	}
	note.Store(&err)
}

// Undecided returns the 503 for a request that could not be decided without etcd.
func Undecided() error {
	return Unavailable("etcd, the database of the server, did not answer, so the request could not be decided; try again")
}
