package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes/scheme"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/client"
)

// logs serves the logs of containers.
type logs struct{ pods *store }

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
	return &logStream{logs: l, name: name, query: query, follow: options.Follow}, nil
}

// queryOf returns options of a request as a query for the target.
func queryOf(options runtime.Object) (url.Values, error) {
	versioned, err := legacyscheme.Scheme.ConvertToVersion(options, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return scheme.ParameterCodec.EncodeParameters(versioned, corev1.SchemeGroupVersion)
}

// headers is within how many deadlines the answer to a request for a stream begins. The target itself waits for a node.
// The answer to a followed log begins with its first line, within silent: a kubelet closes other connections that are
// idle for so long.
const headers, silent = 6, 4 * time.Hour

// A logStream opens the log when the response begins.
type logStream struct {
	logs
	name   string
	query  url.Values
	follow bool
}

var _ rest.ResourceStreamer = &logStream{}

// GetObjectKind implements [runtime.Object].
func (*logStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object]. Nobody copies a stream.
func (s *logStream) DeepCopyObject() runtime.Object { return s }

// InputStream implements [rest.ResourceStreamer].
func (s *logStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	of, err := s.pods.stream(ctx, s.name, nil)
	if err != nil {
		return nil, false, "", err
	}
	body, err := s.open(ctx, of)
	if err != nil {
		of.close()
		return nil, false, "", err
	}
	return body, s.follow, "text/plain", nil
}

// open opens the log of a pod.
func (s *logStream) open(ctx context.Context, of *stream) (io.ReadCloser, error) {
	asking, cancel := context.WithCancel(of.ctx)
	req, err := http.NewRequestWithContext(asking, http.MethodGet, of.locate(of.pod, "log", s.query).String(), nil)
	if err != nil {
		cancel()
		return nil, err
	}
	within := headers * s.pods.Deadline
	if s.follow {
		within = silent
	}
	late := time.AfterFunc(within, cancel)
	resp, err := of.link.Through.RoundTrip(req)
	if ended := !late.Stop(); ended && s.follow && of.ctx.Err() == nil {
		err = errors.Join(err, closed(resp))
		klog.FromContext(ctx).V(2).Info("a followed log does not begin", "cluster", of.workspace.compute, "target", of.target.Name, "err", err)
		err = apierrors.NewTimeoutError(fmt.Sprintf("the log of pod %q has had no line for %s", s.name, silent), 0)
	} else if err != nil {
		err = apierrors.NewServiceUnavailable(of.unreachable(ctx, err).Error())
	} else if resp.StatusCode != http.StatusOK {
		late.Reset(headers * s.pods.Deadline) // an error may not end either
		err = of.refused(ctx, resp)
		late.Stop()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &streamBody{resp.Body, of, cancel}, nil
}

// closed closes the body of a response that is of no use, if there is one.
func closed(resp *http.Response) error {
	if resp == nil {
		return nil
	}
	return resp.Body.Close()
}

type streamBody struct {
	io.ReadCloser
	of     *stream
	cancel context.CancelFunc
}

// Close implements [io.Closer].
func (b *streamBody) Close() error {
	defer b.of.close()
	defer b.cancel()
	return b.ReadCloser.Close()
}

// A stream is an open request for a stream of a pod.
type stream struct {
	*call
	pod   string          // its name at the target
	ctx   context.Context // ends with the request, or when the server closes
	close func()
}

// stream finds a pod and takes a slot for a stream. The stream ends when may says that the user has lost the
// right to it, which nil never does, when the workspace binds the pods of its compute workspace no longer, or when the
// target is not registered any more. The server itself checks the rights to the request.
func (s *store) stream(ctx context.Context, name string, may func(context.Context) error) (*stream, error) {
	at := kcp.ClusterFrom(ctx)
	leave, err := s.limits.enter(streaming(at), streamingOf(s.tenant(at)))
	if err != nil {
		return nil, err
	}
	c, pod, err := s.find(ctx, name)
	if err != nil {
		leave()
		return nil, err
	}
	c.budget.Release() // the pod is not kept
	ctx, cancel := context.WithCancel(ctx)
	done := s.untilClosing(cancel, func() bool {
		return s.started.Load().computeOf(at) == c.workspace.compute && s.registered(ctx, c.workspace.compute, c.Key) && (may == nil || !apierrors.IsForbidden(may(ctx)))
	})
	return &stream{call: c, pod: pod.Name, ctx: ctx, close: func() { cancel(); done(); c.end(); leave() }}, nil
}

// A connector serves a subresource that upgrades the connection.
type connector struct {
	pods    *store
	name    string
	options func() runtime.Object
}

var _ rest.Connecter = &connector{}

// Destroy implements [rest.Storage].
func (*connector) Destroy() {}

// New implements [rest.Storage].
func (c *connector) New() runtime.Object { return c.options() }

// NewConnectOptions implements [rest.Connecter].
func (c *connector) NewConnectOptions() (runtime.Object, bool, string) { return c.options(), false, "" }

// ConnectMethods implements [rest.Connecter].
func (*connector) ConnectMethods() []string { return []string{http.MethodGet, http.MethodPost} }

// Connect implements [rest.Connecter].
func (c *connector) Connect(ctx context.Context, name string, o runtime.Object, responder rest.Responder) (http.Handler, error) {
	if err := c.mayCreate(ctx, name); err != nil {
		return nil, err
	}
	query, err := queryOf(o)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		of, err := c.pods.stream(req.Context(), name, func(ctx context.Context) error { return c.mayCreate(ctx, name) })
		if err != nil {
			responder.Error(err)
			return
		}
		defer of.close()
		t := &tunnel{stream: of, to: of.locate(of.pod, c.name, query), within: headers * c.pods.Deadline, responder: responder}
		t.handler(o).ServeHTTP(w, req.WithContext(of.ctx))
	}), nil
}

// mayCreate checks that the user may create the subresource. A WebSocket begins with a GET, for which
// the right to read would be enough, as in upstream before it had this check.
func (c *connector) mayCreate(ctx context.Context, name string) error {
	u, ok := request.UserFrom(ctx)
	info, ok2 := request.RequestInfoFrom(ctx)
	from := c.pods.started.Load()
	if !ok || !ok2 || from == nil {
		return errStarting()
	}
	if info.Verb == "create" {
		return nil // it is authorized
	}
	cfg, err := from.server.Own(string(kcp.ClusterFrom(ctx)))
	if err != nil {
		return err
	}
	reviews, err := authorization.NewForConfig(client.Cluster(cfg, string(kcp.ClusterFrom(ctx))))
	if err != nil {
		return err
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range u.GetExtra() {
		extra[k] = v
	}
	review, err := reviews.SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Version: "v1", Resource: "pods", Subresource: c.name, Namespace: info.Namespace, Name: name},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !review.Status.Allowed {
		return apierrors.NewForbidden(core.Resource("pods/"+c.name), name, fmt.Errorf("user %q cannot create resource %q in namespace %q", u.GetName(), "pods/"+c.name, info.Namespace))
	}
	return nil
}
