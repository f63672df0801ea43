// Package view serves the paths below /services/: views of many clusters at once, or of one
// cluster with other rights than RBAC grants. A [View] decides on a request and plans how it is
// served: in which clusters, as which user, with which filter. The handlers of all other
// requests then serve it. Each built-in view has a file of its own.
package view

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/storage/registry"
)

// Prefix begins the paths of views. The name of the view follows.
const Prefix = "/services/"

// A View serves the requests below /services/<name>/. Its methods may be called concurrently.
type View interface {
	// Name is the first segment of its paths.
	Name() string
	// Parse reads the part of a path after the name. An error means that the view has
	// nothing at the path.
	Parse(rest string) (*Request, error)
	// Plan decides whether the user of a request may make it, and how it is served. The
	// context has the user and the RequestInfo of the path in the cluster. A [Refusal]
	// gets a 403.
	Plan(req *http.Request, r *Request) (*Plan, error)
}

// A Request is a request for a view, parsed from its path.
type Request struct {
	view View
	// ID is the part of the path that belongs to the view alone.
	ID string
	// Home is the cluster that owns the view. Its RBAC guards the view, and requests count
	// against its limits.
	Home cluster.Name
	// Cluster is the target of the request: one cluster, or all that are in the view.
	Cluster cluster.Name
	// Path is the path in the cluster.
	Path string
	// nameless means that the URL has something else than a name in the place of the cluster's name.
	nameless bool
}

// outside returns the reason for refusing a request in a cluster that is not in the view. It is the same
// for clusters that do not exist.
func (r *Request) outside(reason string) string {
	if r.nameless {
		return "a view has logical clusters by their names, not by paths: the name is in the annotation kcp.io/cluster of each object"
	}
	return reason
}

// Views serves the views of one server.
type Views struct {
	all        map[string]View
	serializer runtime.NegotiatedSerializer
}

// New returns a server of views. Two views must not have the same name.
func New(s runtime.NegotiatedSerializer, all ...View) (*Views, error) {
	v := &Views{all: map[string]View{}, serializer: s}
	for _, one := range all {
		if _, taken := v.all[one.Name()]; taken {
			return nil, fmt.Errorf("there are two views with the path %s%s", Prefix, one.Name())
		}
		v.all[one.Name()] = one
	}
	return v, nil
}

type requestKey struct{}

// With returns a context for a request for a view.
func With(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// From returns the request for a view in a context, if there is one.
func From(ctx context.Context) (*Request, bool) {
	r, ok := ctx.Value(requestKey{}).(*Request)
	return r, ok
}

// Parse reads the path of a request for a view. found is false if the path is not in a
// view. An error means that the view has nothing at the path.
func (v *Views) Parse(path string) (r *Request, found bool, err error) {
	below, ok := strings.CutPrefix(path, Prefix)
	name, rest, _ := strings.Cut(below, "/")
	if !ok {
		return nil, false, nil
	}
	if one, known := v.all[name]; known {
		if r, err = one.Parse(rest); err == nil {
			r.view = one
		}
		return r, true, err
	}
	if why := missing(name); why != "" {
		return nil, true, notFound(fmt.Sprintf("there is no virtual workspace %q: %s", name, why))
	}
	return nil, false, nil
}

// missing returns why a view of the existing kcp is not served, and "" for other names.
// Without it, clients of these views would get a misleading 403.
func missing(name string) string {
	switch name {
	case "cache", "migratingworkspaces":
		return "there is a single shard"
	}
	return ""
}

type planKey struct{}

// WithAuthorization authorizes requests for views, and passes them to next. It passes all
// other requests to others.
func (v *Views) WithAuthorization(others, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		r, ok := From(ctx)
		if !ok {
			others.ServeHTTP(w, req)
			return
		}
		p, err := r.view.Plan(req, r)
		if err != nil {
			v.refuse(w, req, err)
			return
		}
		audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "allow", "authorization.k8s.io/reason", p.Reason)
		next.ServeHTTP(w, req.WithContext(context.WithValue(ctx, planKey{}, p)))
	})
}

// Refuses reports whether a request for a view that was allowed before would be refused now. ok is false if the
// request is for no view. An error that is no refusal does not count as one.
func (v *Views) Refuses(req *http.Request) (refused, ok bool) {
	r, ok := From(req.Context())
	if !ok {
		return false, false
	}
	_, err := r.view.Plan(req, r)
	var refusal *Refusal
	return errors.As(err, &refusal) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err), true
}

// WithoutImpersonation refuses requests for views that impersonate. The owner of the
// cluster of a view may impersonate any user there, and could so act as them in other
// clusters.
func (v *Views) WithoutImpersonation(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r, ok := From(req.Context())
		u, known := request.UserFrom(req.Context())
		if !ok || !impersonates(req.Header) || known && auth.IsPrivileged(u) {
			next.ServeHTTP(w, req)
			return
		}
		v.refuse(w, req, &Refusal{authorizer.AttributesRecord{User: u, Verb: "impersonate", Path: r.Path}, "requests through a view cannot impersonate; come as the user who may use the view"})
	})
}

func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// Enter passes requests for views to their target. It must run inside of the handlers that
// count a request against the cluster of the view.
func (v *Views) Enter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		r, ok := From(ctx)
		p, planned := ctx.Value(planKey{}).(*Plan)
		switch {
		case !ok:
			next.ServeHTTP(w, req)
		case !planned:
			v.refuse(w, req, apierrors.NewInternalError(errors.New("a request for a view that nobody decided on")))
		case p.Page != nil:
			p.Page.ServeHTTP(w, req)
		case p.together != nil:
			p.together.serve(w, req, func(w http.ResponseWriter, req *http.Request, one part) { enter(w, req, one.of, one.plan, next) })
		default:
			enter(w, req, r, p, next)
		}
	})
}

// enter passes a request for a view to next, as it was planned.
func enter(w http.ResponseWriter, req *http.Request, r *Request, p *Plan, next http.Handler) {
	ctx := request.WithUser(cluster.With(req.Context(), r.Cluster), p.User)
	if p.Context != nil {
		var done func()
		ctx, done = p.Context(ctx)
		defer func() { response.WhenServed(ctx, done) }()
	}
	if p.Scope != nil {
		scope, done := p.Scope()
		ctx = registry.WithScope(ctx, scope)
		defer func() { response.WhenServed(ctx, done) }()
	}
	inside := req.WithContext(ctx)
	if p.Query != nil {
		u := *req.URL
		u.RawQuery = p.Query.Encode()
		inside.URL, inside.RequestURI = &u, u.RequestURI()
	}
	next.ServeHTTP(w, inside)
}

func (v *Views) refuse(w http.ResponseWriter, req *http.Request, err error) {
	var forbidden *Refusal
	if errors.As(err, &forbidden) {
		audit.AddAuditAnnotations(req.Context(), "authorization.k8s.io/decision", "forbid", "authorization.k8s.io/reason", forbidden.Reason)
		responsewriters.Forbidden(forbidden.Attributes, w, req, forbidden.Reason, v.serializer)
		return
	}
	responsewriters.ErrorNegotiated(err, v.serializer, schema.GroupVersion{}, w, req)
}
