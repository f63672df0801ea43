package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// A tunnel passes an upgraded connection to a target. WebSockets of kubectl become SPDY here, as in
// kube-apiserver: otherwise the target would upgrade before it has reached the node, and the stream
// would show the client the address that it could not reach.
type tunnel struct {
	*Stream
	to        *url.URL
	responder rest.Responder
	command   bool // the connection has a stream for errors
}

// handler returns the handler for a request with options of a subresource.
func (t *tunnel) handler(o runtime.Object) http.Handler {
	pass := http.HandlerFunc(t.pass)
	var streams translator.Options
	switch o := o.(type) {
	case *core.PodExecOptions:
		streams = translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	case *core.PodAttachOptions:
		streams = translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
	default:
		return translator.NewTranslatingHandler(pass, translator.NewTunnelingHandler(pass), wsstream.IsWebSocketRequestWithTunnelingProtocol)
	}
	t.command = true
	translated := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var work sync.WaitGroup
		defer work.Wait()
		ctx, cancel := context.WithCancel(t.Context)
		defer cancel()
		to := *t.to
		to.Scheme, to.Host = "http", "pod" // to this process, which connects to the target
		dial := func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			work.Go(func() { t.serve(ctx, far) })
			return near, nil
		}
		translator.NewStreamTranslatorHandler(&to, &http.Transport{DialContext: dial}, 0, streams).ServeHTTP(framed{w}, req.WithContext(reasonContext{ctx, sync.OnceValue(t.Why)}))
	})
	return translator.NewTranslatingHandler(pass, translated, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
}

// headers of a request that the target needs for an upgrade. All others, such as credentials,
// are not passed on.
func upgradeHeaders() []string {
	return []string{"Connection", "Upgrade", "X-Stream-Protocol-Version", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions"}
}

// call sends a request to the target. It returns the response if that is an upgrade.
func (t *tunnel) call(ctx context.Context, from *http.Request) (_ *http.Response, _ io.ReadWriteCloser, err error) {
	upgrading, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	req, err := http.NewRequestWithContext(upgrading, from.Method, t.to.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range upgradeHeaders() {
		for _, v := range from.Header.Values(name) {
			req.Header.Add(name, v)
		}
	}
	late := time.AfterFunc(headers*t.Deadline, cancel) // for the answer to the upgrade, not for the stream
	defer late.Stop()
	resp, err := t.Through.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols && !late.Stop() {
		err = errors.Join(context.DeadlineExceeded, resp.Body.Close())
	}
	if err != nil {
		return nil, nil, apierrors.NewServiceUnavailable(t.Unreachable(ctx, err).Error())
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if resp.StatusCode < http.StatusBadRequest {
			resp.StatusCode = http.StatusBadGateway // the client wants an upgrade
		}
		return nil, nil, t.Refused(ctx, resp)
	}
	body, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		return nil, nil, errors.Join(errors.New("the connection to the physical cluster cannot be upgraded"), resp.Body.Close())
	}
	return resp, upgraded{body, cancel}, nil
}

// An upgraded connection ends with its context.
type upgraded struct {
	io.ReadWriteCloser
	cancel context.CancelFunc
}

// Close implements [io.Closer].
func (u upgraded) Close() error {
	defer u.cancel()
	return u.ReadWriteCloser.Close()
}

// pass is the handler of upgrades that go through as they are.
func (t *tunnel) pass(w http.ResponseWriter, req *http.Request) {
	if req.Header.Get("Upgrade") == "" {
		t.responder.Error(apierrors.NewBadRequest("Upgrade request required"))
		return
	}
	resp, far, err := t.call(t.Context, req)
	if err != nil {
		t.responder.Error(err)
		return
	}
	defer closeEnd(far)
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		t.responder.Error(errors.New("the connection cannot be upgraded"))
		return
	}
	near, buffered, err := hijacker.Hijack()
	if err != nil {
		t.responder.Error(err)
		return
	}
	defer closeEnd(near)
	var from io.Reader = near
	if buffered != nil { // upstream's tunnel has none
		from = buffered.Reader
	}
	if err := head(near, resp); err == nil {
		t.join(t.Context, answer(near, from, far, resp))
	}
}

// serve serves one connection of this process.
func (t *tunnel) serve(ctx context.Context, near net.Conn) {
	defer closeEnd(near)
	stop := context.AfterFunc(ctx, func() { _ = near.Close() })
	defer stop()
	from := bufio.NewReader(near)
	req, err := http.ReadRequest(from)
	if err != nil {
		return
	}
	resp, far, err := t.call(ctx, req)
	if err != nil {
		refuse(near, err)
		return
	}
	defer closeEnd(far)
	if err := head(near, resp); err == nil {
		t.join(ctx, answer(near, from, far, resp))
	}
}

// head writes the header of an upgrade.
func head(to io.Writer, resp *http.Response) error {
	own := &http.Response{StatusCode: resp.StatusCode, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}}
	for _, name := range append(upgradeHeaders(), "Sec-Websocket-Accept") {
		for _, v := range resp.Header.Values(name) {
			own.Header.Add(name, v)
		}
	}
	return own.Write(to)
}

// An answered connection is one that the target has upgraded.
type answered struct {
	near     io.ReadWriteCloser
	from     io.Reader // what near reads
	far      io.ReadWriteCloser
	frames   bool   // of SPDY
	protocol string // of the streams in it
}

// answer returns the connection of a response that upgrades it.
func answer(near io.ReadWriteCloser, from io.Reader, far io.ReadWriteCloser, resp *http.Response) answered {
	spdy := strings.HasPrefix(strings.ToLower(resp.Header.Get("Upgrade")), "spdy/")
	return answered{near, from, far, spdy, resp.Header.Get(httpstream.HeaderProtocolVersion)}
}

// join copies in both directions until one ends, or ctx does. The client of a command that the server ends learns why.
func (t *tunnel) join(ctx context.Context, c answered) {
	end := sync.OnceFunc(func() { _, _ = c.near.Close(), c.far.Close() })
	why := func() string { return "" }
	if t.command && c.frames { // others have other frames
		why = sync.OnceValue(t.Why)
	}
	over := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		closeEnd(c.far)
		if why() != "" {
			select {
			case <-over:
			case <-time.After(lastFrameTimeout): // the client does not read
			}
		}
		end()
	})()
	defer close(over)
	to := &spdyWriter{to: c.near}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(c.far, c.from)
		if ctx.Err() == nil || why() == "" { // otherwise the client is told first
			end() // an end of either side is the end
		}
	})
	both.Go(func() {
		defer end()
		_, _ = io.Copy(to, c.far)
		if ctx.Err() != nil && to.whole() {
			_, _ = c.near.Write(lastFrame(c.protocol, why())) // the client has gone if it fails
		}
	})
	both.Wait()
}

// closeEnd closes an end of a connection. The other end sees that it is closed, whatever Close says.
func closeEnd(c io.Closer) { _ = c.Close() }

// refuse writes an error as the response of a connection of this process.
func refuse(to io.Writer, err error) {
	status := statusOf(err)
	resp := &http.Response{StatusCode: int(status.Code), ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}}, Body: bodyOf(status), ContentLength: -1, Close: true}
	_ = resp.Write(to) // the client has gone if it fails
}

// statusOf returns an error as a status, whose kind clients look at.
func statusOf(err error) *metav1.Status {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	var of apierrors.APIStatus
	if errors.As(err, &of) {
		status = of.Status()
	}
	status.APIVersion, status.Kind = "v1", "Status"
	return &status
}

func bodyOf(s *metav1.Status) io.ReadCloser {
	text, _ := json.Marshal(s) // strings always encode
	return io.NopCloser(bytes.NewReader(text))
}
