// Package outage classifies errors of etcd and converts them to API statuses: etcd is full, cannot be
// reached, or may have made a write.
package outage

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// Status converts an error about the state of etcd to an API status, and returns other
// errors unchanged. The text of the status does not contain the text of etcd, because that
// may contain addresses of etcd. The error chain contains it, for logs.
func Status(err error, writes bool) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return space.Full()
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return apierrors.NewRequestEntityTooLargeError("it exceeds the request limit of etcd, the database of the server")
	case !Is(err):
		return err
	case writes && !unsent(err):
		return &outage{apierrors.NewTimeoutError("etcd, the database of the server, did not answer: the write may have been made or not; read the object, and try again", 1), err}
	}
	return &outage{unavailable("etcd, the database of the server, cannot be reached or has no quorum; try again"), err}
}

// An outage is an API status with the etcd error that caused it.
type outage struct {
	*apierrors.StatusError
	cause error
}

// Unwrap returns the etcd error.
func (o *outage) Unwrap() error { return o.cause }

// As lets [errors.As] find the API status.
func (o *outage) As(target any) bool {
	status, ok := target.(**apierrors.StatusError)
	if ok {
		*status = o.StatusError
	}
	return ok
}

// Unavailable returns a 503 for a request that had no effect and can be retried.
func Unavailable(why string) error { return unavailable(why) }

func unavailable(why string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable,
		Message: why, Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
	}}
}

// StatusIn returns err if it is an API status. If err wraps one, StatusIn returns that status
// with the text of err. Handlers of Kubernetes answer 500 to an error that only wraps a
// status.
func StatusIn(err error) error {
	var status apierrors.APIStatus
	if _, is := err.(apierrors.APIStatus); is || !errors.As(err, &status) { //nolint:errorlint // the handlers use a type assertion
		return err
	}
	wrapped := &apierrors.StatusError{ErrStatus: status.Status()}
	wrapped.ErrStatus.Message = err.Error()
	return wrapped
}

// Is reports whether err means that etcd cannot be reached or has no quorum.
func Is(err error) bool {
	var known rpctypes.EtcdError
	code := codes.Unknown
	if errors.As(err, &known) {
		code = known.Code()
	} else if s, ok := grpcstatus.FromError(err); ok {
		code = s.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, rpctypes.ErrTooManyRequests) || errors.Is(err, ErrUnavailable)
}

// ErrUnavailable is the error of a request that was not sent, or was given up, because etcd does not
// answer.
var ErrUnavailable = errors.New("etcd is not available")

// Changes reports whether an operation may change anything.
func Changes(op clientv3.Op) bool {
	if !op.IsTxn() {
		return op.IsPut() || op.IsDelete()
	}
	_, then, alse := op.Txn()
	return slices.ContainsFunc(then, Changes) || slices.ContainsFunc(alse, Changes)
}

// unsent reports whether a request that failed with err certainly had no effect.
func unsent(err error) bool {
	if errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "Error while dialing") || strings.Contains(text, "no connection available") || strings.Contains(text, "no address available")
}

// Reason returns the useful part of a connection error, without the prefixes of gRPC.
func Reason(err error) error {
	if o := (*outage)(nil); errors.As(err, &o) {
		err = o.cause
	}
	err = rpctypes.Error(err) // converts known gRPC errors
	text := err.Error()
	if s, ok := grpcstatus.FromError(err); ok && s.Code() != codes.OK {
		text = s.Message()
	}
	if i := strings.LastIndex(text, `desc = "transport: `); i >= 0 {
		text = strings.TrimSuffix(text[i+len(`desc = "transport: `):], `"`)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		text = "it does not answer"
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}
