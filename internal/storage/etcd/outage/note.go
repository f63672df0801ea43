package outage

import (
	"context"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type noteKey struct{}

// WithNote returns a context that records errors of etcd during reads. A refusal after such
// an error is not reliable. [Noted] returns the record.
func WithNote(ctx context.Context) context.Context {
	return context.WithValue(ctx, noteKey{}, new(atomic.Pointer[error]))
}

// Noted returns the recorded error, an API status, or nil.
func Noted(ctx context.Context) error {
	note, ok := ctx.Value(noteKey{}).(*atomic.Pointer[error])
	if !ok {
		return nil
	}
	if err := note.Load(); err != nil {
		return *err
	}
	return nil
}

// Note records err, or [Undecided] if err is no 503, in a context of [WithNote].
func Note(ctx context.Context, err error) {
	note, ok := ctx.Value(noteKey{}).(*atomic.Pointer[error])
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
