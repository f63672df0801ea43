package server

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

	"github.com/unforked/kcp/internal/store"
)

// inProcess is a transport to a handler in the same process, with nothing between.
type inProcess struct {
	handler http.Handler
	user    user.Info // whom the requests come from
	// stop ends all requests; running counts them.
	stop    context.Context
	running *sync.WaitGroup
	// grace is how long the rest of an answer may wait to be read after its request has
	// ended.
	grace time.Duration
}

type inProcessUser struct{}

var errUnread = errors.New("the request ended, and nobody read the rest of its answer")

// fromInProcess authenticates requests that came through an [inProcess]: their
// user is in the context, where no request from outside can put one.
func fromInProcess(req *http.Request) (*authenticator.Response, bool, error) {
	u, ok := req.Context().Value(inProcessUser{}).(user.Info)
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

// RoundTrip implements [http.RoundTripper].
func (t *inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := errors.Join(t.stop.Err(), req.Context().Err()); err != nil {
		return nil, err
	}
	// Of the caller's context the end counts. It may be that of another
	// request, whose audit event, user and cluster are not this one's.
	ctx := context.WithValue(t.stop, inProcessUser{}, t.user)
	ctx, cancel := context.WithCancel(store.WithTermOf(ctx, req.Context())) // that, and whether a loop asks
	unlink := context.AfterFunc(req.Context(), cancel)
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	// A handler sees that its request has ended, but not while it waits for a reader.
	release := context.AfterFunc(ctx, func() {
		time.AfterFunc(t.grace, func() { _ = writer.CloseWithError(errUnread) })
	})
	w := &pipeResponse{header: http.Header{}, body: writer, started: make(chan struct{})}
	t.running.Go(func() {
		defer cancel()
		defer unlink()
		defer release()
		defer func() {
			var err error
			if r := recover(); r != nil {
				err = errors.New("the request was aborted")
				w.WriteHeader(http.StatusInternalServerError) // unless it had begun to answer
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.CloseWithError(err)
			_ = in.Body.Close()
		}()
		t.handler.ServeHTTP(w, in)
	})
	select {
	case <-w.started:
	case <-ctx.Done():
		// The handler sees the same, and ends.
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

// pipeBody ends the request when its reader is done with it.
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

// Flush implements [http.Flusher]: nothing is held back.
func (w *pipeResponse) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements the interface that older handlers look for.
func (w *pipeResponse) CloseNotify() <-chan bool { return nil }
