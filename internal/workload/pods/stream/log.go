package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"
)

// logs serves the logs of containers.
type logs struct{ open Opener }

var _ rest.GetterWithOptions = logs{}

// Destroy implements [rest.Storage].
func (logs) Destroy() {}

// New implements [rest.Storage].
func (logs) New() runtime.Object { return &core.Pod{} }

// NewGetOptions implements [rest.GetterWithOptions].
func (logs) NewGetOptions() (runtime.Object, bool, string) { return &core.PodLogOptions{}, false, "" }

// ProducesMIMETypes implements [rest.StorageMetadata].
func (logs) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject implements [rest.StorageMetadata].
func (logs) ProducesObject(string) any { return "" }

// OverrideMetricsVerb implements upstream's interface for the verbs of metrics.
func (logs) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get implements [rest.GetterWithOptions]. It returns a stream.
func (l logs) Get(ctx context.Context, name string, o runtime.Object) (runtime.Object, error) {
	options, ok := o.(*core.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("invalid options: %T", o)
	}
	query, err := queryOf(options)
	if err != nil {
		return nil, err
	}
	query.Del("insecureSkipTLSVerifyBackend") // how the physical cluster reaches its nodes is its own decision
	return &logStream{open: l.open, name: name, query: query, follow: options.Follow}, nil
}

// A logStream opens the log when the response begins.
type logStream struct {
	open   Opener
	name   string
	query  url.Values
	follow bool
}

var _ rest.ResourceStreamer = &logStream{}

// GetObjectKind implements [runtime.Object].
func (*logStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object]. It returns the stream itself, as streams are never copied.
func (s *logStream) DeepCopyObject() runtime.Object { return s }

// InputStream implements [rest.ResourceStreamer].
func (s *logStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	of, err := s.open(ctx, s.name, nil)
	if err != nil {
		return nil, false, "", err
	}
	body, err := s.begin(ctx, of)
	if err != nil {
		of.Close()
		return nil, false, "", err
	}
	return body, s.follow, "text/plain", nil
}

// begin opens the log of a pod.
func (s *logStream) begin(ctx context.Context, of *Stream) (io.ReadCloser, error) {
	asking, cancel := context.WithCancel(of.Context)
	req, err := http.NewRequestWithContext(asking, http.MethodGet, of.locate("log", s.query).String(), nil)
	if err != nil {
		cancel()
		return nil, err
	}
	within := headers * of.Deadline
	if s.follow {
		within = silent
	}
	late := time.AfterFunc(within, cancel)
	resp, err := of.Through.RoundTrip(req)
	if ended := !late.Stop(); ended && s.follow && of.Context.Err() == nil {
		err = errors.Join(err, closed(resp))
		of.Log.V(2).Info("a followed log does not begin", "err", err)
		err = apierrors.NewTimeoutError(fmt.Sprintf("the log of pod %q has had no line for %s", s.name, silent), 0)
	} else if err != nil {
		err = apierrors.NewServiceUnavailable(of.Unreachable(ctx, err).Error())
	} else if resp.StatusCode != http.StatusOK {
		late.Reset(headers * of.Deadline) // an error may not end either
		err = of.Refused(ctx, resp)
		late.Stop()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &streamBody{&reasonReader{from: resp.Body, reason: of.Why}, resp.Body, of, cancel}, nil
}

// closed closes the body of a response that is of no use, if there is one.
func closed(resp *http.Response) error {
	if resp == nil {
		return nil
	}
	return resp.Body.Close()
}

type streamBody struct {
	io.Reader
	io.Closer
	of     *Stream
	cancel context.CancelFunc
}

// Close implements [io.Closer].
func (b *streamBody) Close() error {
	defer b.of.Close()
	defer b.cancel()
	return b.Closer.Close()
}
