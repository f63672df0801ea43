// Package stream serves the logs of containers and connections to them. It hides how a connection is upgraded on both sides,
// which headers and frames go through, and how long a target may take before a stream begins.
package stream

import (
	"context"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// A Stream is an open request for a stream of a pod.
type Stream struct {
	Context context.Context // ends with the request, or when the stream must end
	Close   func()
	// Why returns the text for the client of a stream that the server has ended, empty if it has not.
	Why     func() string
	Pod     *url.URL // of the pod at the target
	Through http.RoundTripper
	// Deadline is how long the target may take for an answer that needs no node.
	Deadline time.Duration
	// Unreachable logs an error of the target, and returns one for the tenant.
	Unreachable func(context.Context, error) error
	// Refused logs a response of the target that is an error, and returns an error for the tenant. It closes the body.
	Refused func(context.Context, *http.Response) error
	Log     klog.Logger // names the target
}

// locate returns the URL of a subresource of the pod.
func (s *Stream) locate(subresource string, query url.Values) *url.URL {
	return s.Pod.JoinPath(subresource).ResolveReference(&url.URL{RawQuery: query.Encode()})
}

// headers is within how many deadlines the answer to a request for a stream begins. The target itself waits for a node.
// The answer to a followed log begins with its first line, within silent: a kubelet closes other connections that are
// idle for so long.
const headers, silent = 6, 4 * time.Hour

// An Opener finds a pod in the workspace of a request, and opens a stream of it. The stream ends when may says that the user
// has lost the right to it, which nil never does. The caller must close it.
type Opener func(ctx context.Context, name string, may func(context.Context) error) (*Stream, error)

// queryOf returns options of a request as a query for the target.
func queryOf(options runtime.Object) (url.Values, error) {
	versioned, err := legacyscheme.Scheme.ConvertToVersion(options, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return scheme.ParameterCodec.EncodeParameters(versioned, corev1.SchemeGroupVersion)
}
