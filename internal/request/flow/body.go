package flow

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/request/fair"
)

// maxMembers is the maximum number of map members and list items in a request body.
// The time for managed fields grows with the square of that number.
const maxMembers = 50_000

// withBody reads the body of a request and returns the request and the body's extent. The
// handler refuses bodies that are too long.
func (f *Filters) withBody(req *http.Request, work *fair.Work) (*http.Request, fair.Extent, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return req, fair.Extent{}, nil
	}
	body, err := io.ReadAll(io.LimitReader(&weighed{req.Body, work}, f.MaxBody+1))
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return req, fair.Extent{}, err
	}
	extent := fair.Measure(body)
	if extent.Members > maxMembers {
		return req, extent, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object has more than %d fields and items; split it into several objects", maxMembers))
	}
	if err := work.Grow(extent.Memory() - int64(extent.Bytes)); err != nil {
		return req, extent, err
	}
	if err == nil {
		err = io.EOF
	}
	whole := *req
	whole.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), failed{err}), req.Body}
	return &whole, extent, nil
}

// weighed counts the bytes read as memory of the request.
type weighed struct {
	io.Reader
	work *fair.Work
}

// Read implements [io.Reader].
func (r *weighed) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if refused := r.work.Grow(int64(n)); refused != nil {
		return n, refused
	}
	return n, err
}

// failed is a reader that returns an error only.
type failed struct{ err error }

// Read implements [io.Reader].
func (f failed) Read([]byte) (int, error) { return 0, f.err }

// WithoutUselessBodies closes the bodies of reads. No handler uses them, and the server
// would buffer them as long as a watch lasts.
func WithoutUselessBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// An unused HTTP/1 body is never read; closing it would read it.
		if req.ProtoMajor == 2 && req.Body != nil && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
			_ = req.Body.Close() // it cannot fail
		}
		next.ServeHTTP(w, req)
	})
}
