package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/storage/registry"
)

// A Plan is how an allowed request for a view is served. Its functions are called when the
// request begins to be served, and the functions that they return when it has been served.
type Plan struct {
	// User makes the request in its cluster.
	User user.Info
	// Reason is why the request is allowed, for the audit log.
	Reason string
	// Scope returns the set of clusters of a list or watch in all clusters. Clusters may
	// enter and leave it while a watch is open. Nil is for all clusters.
	Scope func() (scope registry.Scope, done func())
	// Query is the query, if it differs from the client's.
	Query url.Values
	// Page answers the request, instead of the server.
	Page http.Handler
	// together is a watch of several kinds, which answers the request instead of the server.
	together *together
	// Context returns the context to serve the request in. Nil keeps the context.
	Context func(context.Context) (_ context.Context, done func())
}

// A Refusal is a 403 error with the attributes of the request.
type Refusal struct {
	Attributes authorizer.Attributes
	Reason     string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

// requestOf returns the user of a request, and what they request in the cluster.
func requestOf(ctx context.Context) (user.Info, *request.RequestInfo, error) {
	u, known := request.UserFrom(ctx)
	info, ok := request.RequestInfoFrom(ctx)
	if !known || !ok {
		return nil, nil, apierrors.NewInternalError(errors.New("a request for a view without a user"))
	}
	return u, info, nil
}

// authorize returns a [Refusal] unless guard allows a request.
func authorize(ctx context.Context, guard authorizer.Authorizer, a authorizer.Attributes) error {
	decision, reason, err := guard.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return errors.Join(&Refusal{a, reason}, err)
}

// An entry is the Context of a [Plan].
type entry = func(context.Context) (_ context.Context, done func())

// unchanged is the entry that keeps the context.
func unchanged(ctx context.Context) (context.Context, func()) { return ctx, func() {} }

// withValue returns e for a context with one more value.
func withValue(e entry, value func(context.Context) context.Context) entry {
	return func(ctx context.Context) (context.Context, func()) { return e(value(ctx)) }
}

// withGrant returns e for a request with a grant.
func withGrant(e entry, g *authz.Grant) entry {
	return withValue(e, func(ctx context.Context) context.Context { return authz.WithGrant(ctx, g) })
}

// onlyReads refuses a request to all clusters of a view that neither lists nor watches.
func onlyReads(req *http.Request, info *request.RequestInfo, gr schema.GroupResource) error {
	switch {
	case info.Verb != "list" && info.Verb != "watch" || info.Subresource != "" || req.Method != http.MethodGet:
		err := apierrors.NewMethodNotSupported(gr, info.Verb)
		err.ErrStatus.Message = info.Verb + " is not possible in all logical clusters at once: only list and watch are in the `*` logical cluster"
		return err
	case IsSet(req, "sendInitialEvents"):
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
			field.Forbidden(field.NewPath("sendInitialEvents"), "not possible in the `*` logical cluster; list, and then watch")})
	}
	return nil
}

// IsSet reads a parameter as Kubernetes does: anything but 0 and false sets it.
func IsSet(req *http.Request, parameter string) bool {
	values, ok := req.URL.Query()[parameter]
	return ok && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// selecting adds required labels to the label selector of a query.
func selecting(query url.Values, required labels.Set) (url.Values, error) {
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("labelSelector %q: %v", query.Get("labelSelector"), err))
	}
	also, _ := labels.SelectorFromSet(required).Requirements()
	query.Set("labelSelector", selector.Add(also...).String())
	return query, nil
}

// describes reports whether a path describes the APIs of a cluster.
func describes(path string) bool {
	first, rest, _ := strings.Cut(strings.Trim(path, "/"), "/")
	switch first {
	case "api", "apis", "openapi":
		return true
	case "version":
		return rest == ""
	}
	return false
}

// writeJSON answers with an object.
func writeJSON(w http.ResponseWriter, o any) error {
	text, err := json.Marshal(o)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // an error means that the client has disconnected
	return nil
}

// notFound returns a 404 error. A view has no list of what it lacks, so the message says why.
func notFound(message string) error {
	err := apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", message, 0, true)
	err.ErrStatus.Message = "the server could not find the requested resource: " + message
	return err
}
