package stream

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/client"
)

// A connector serves a subresource that upgrades the connection.
type connector struct {
	open    Opener
	config  func(kcp.ClusterName) (*clientrest.Config, error) // see [Streams]
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
		of, err := c.open(req.Context(), name, func(ctx context.Context) error { return c.mayCreate(ctx, name) })
		if err != nil {
			responder.Error(err)
			return
		}
		defer of.Close()
		t := &tunnel{Stream: of, to: of.locate(c.name, query), responder: responder}
		t.handler(o).ServeHTTP(w, req.WithContext(of.Context))
	}), nil
}

// mayCreate checks that the user may create the subresource. A WebSocket begins with a GET, for which
// the right to read would be enough, as in upstream before it had this check.
func (c *connector) mayCreate(ctx context.Context, name string) error {
	u, ok := request.UserFrom(ctx)
	info, ok2 := request.RequestInfoFrom(ctx)
	if !ok || !ok2 {
		return apierrors.NewInternalError(errors.New("the request has no user"))
	}
	if info.Verb == "create" {
		return nil // it is authorized
	}
	cfg, err := c.config(kcp.ClusterFrom(ctx))
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
