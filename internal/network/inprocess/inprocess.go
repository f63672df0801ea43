// Package inprocess is an HTTP transport to a handler in the same process. The handler trusts
// the user that the transport was made for.
package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/storage/election"
)

// A Transport calls a handler in the same process directly.
type Transport struct {
	Handler http.Handler
	// User is the sender of the requests.
	User user.Info
	// Stop ends all requests. Running counts them.
	Stop    context.Context
	Running *sync.WaitGroup
	// Grace is how long a client may take to read the rest of a response after its request
	// has ended.
	Grace time.Duration
}

type userKey struct{}

// User returns the sender of a request that came through a [Transport]. Requests from outside
// cannot set it.
func User(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(userKey{}).(user.Info)
	return u, ok
}

type loopKey struct{}

// ForLoop marks requests as those of the server's own loops: requests whose [Transport] has a
// context Stop with this mark.
func ForLoop(ctx context.Context) context.Context { return context.WithValue(ctx, loopKey{}, true) }

// IsLoop reports whether a request comes from one of the server's own loops.
func IsLoop(ctx context.Context) bool { return ctx.Value(loopKey{}) != nil }

var errUnread = errors.New("the request ended before the client had read the whole response")

// Authenticate authenticates requests that came through a [Transport].
func Authenticate(req *http.Request) (*authenticator.Response, bool, error) {
	u, ok := User(req.Context())
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := errors.Join(t.Stop.Err(), req.Context().Err()); err != nil {
		return nil, err
	}
	// The new context ends with the caller's but does not inherit its values. The caller
	// may serve another request, with another user, cluster and audit event.
	ctx := context.WithValue(t.Stop, userKey{}, t.User)
	ctx, cancel := context.WithCancel(election.WithTermOf(ctx, req.Context())) // the lease of a calling loop is kept
	unlink := context.AfterFunc(req.Context(), cancel)
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	// A handler that blocks in a write to the pipe does not see that its request has ended.
	release := context.AfterFunc(ctx, func() {
		time.AfterFunc(t.Grace, func() { _ = writer.CloseWithError(errUnread) })
	})
	w := &pipeResponse{header: http.Header{}, body: writer, started: make(chan struct{})}
	t.Running.Go(func() {
		defer cancel()
		defer unlink()
		defer release()
		defer func() {
			var err error
			if r := recover(); r != nil {
				err = errors.New("the request was aborted")
				w.WriteHeader(http.StatusInternalServerError) // no effect if the response has begun
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.CloseWithError(err)
			_ = in.Body.Close()
		}()
		t.Handler.ServeHTTP(w, in)
	})
	select {
	case <-w.started:
	case <-ctx.Done():
		// The handler's context has ended, too, so the handler returns.
		if err := req.Context().Err(); err != nil {
			_ = reader.CloseWithError(err)
			return nil, err
		}
		<-w.started
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &pipeBody{reader, cancel}, ContentLength: -1, Request: req,
	}, nil
}

// pipeBody is a response body that ends the request when it is closed.
type pipeBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *pipeBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipeResponse writes to a pipe.
type pipeResponse struct {
	header, sent http.Header
	status       int
	body         *io.PipeWriter
	once         sync.Once
	started      chan struct{}
}

func (w *pipeResponse) Header() http.Header { return w.header }

func (w *pipeResponse) WriteHeader(status int) {
	if status < 200 {
		return // informational
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

func (w *pipeResponse) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush implements [http.Flusher]. Writes are not buffered.
func (w *pipeResponse) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier, which older handlers require.
func (w *pipeResponse) CloseNotify() <-chan bool { return nil }
