// Package view serves the paths below /services/: views of many clusters at once, or of one
// cluster with other rights than RBAC grants. A view rewrites a request, to a cluster, with
// a filter or with another user, and passes it to the handlers of every other request. Each
// view has a file of its own.
package view

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/tenancy"
)

// Prefix begins the paths of views. The name of the view follows.
const Prefix = "/services/"

// Config holds the dependencies of views. All fields are required.
type Config struct {
	// Guard authorizes the use of a view, and Authorizer requests in a cluster.
	Guard, Authorizer authorizer.Authorizer
	Serializer        runtime.NegotiatedSerializer
	// LogicalCluster returns the current LogicalCluster of a cluster, nil if there is none.
	LogicalCluster func(context.Context, cluster.Name) (*core.LogicalCluster, error)
	// Permissions returns the rules that a WorkspaceType grants to its initializer and its
	// terminator.
	Permissions func(ctx context.Context, c cluster.Name, name string) (initializer, terminator []rbacv1.PolicyRule, err error)
	// Discovery describes the LogicalClusters of a view.
	Discovery http.Handler
}

// Views serves the views of one server.
type Views struct {
	config  Config
	all     map[string]*lifecycle // by name
	lasting lasting
}

// New returns the views of a server.
func New(c Config) *Views {
	v := &Views{config: c, all: map[string]*lifecycle{}, lasting: newLasting()}
	for _, one := range []*lifecycle{initializing(), terminating()} {
		v.all[one.name] = one
	}
	return v
}

// Changed reports a change of the LogicalCluster of cluster c, which may have left a view.
func (v *Views) Changed(c cluster.Name) { v.lasting.changed(c) }

// A Request is a request for a view, parsed from its path.
type Request struct {
	view *lifecycle
	id   string // of the initializer or terminator
	kind string // the WorkspaceType that it is of
	// Home is the cluster that owns the view. Its RBAC guards the view, and requests count
	// against its limits.
	Home cluster.Name
	// Cluster is the target of the request: one cluster, or all that are in the view.
	Cluster cluster.Name
	// Path is the path in the cluster.
	Path string
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
		r, err = one.parse(rest)
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
	case "apiexport", "apiresourceschema", "replication":
		return "APIs cannot be shared between workspaces yet"
	case "cache", "migratingworkspaces":
		return "there is a single shard"
	}
	return ""
}

func notFound(message string) error {
	err := apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", message, 0, true)
	err.ErrStatus.Message = "the server could not find the requested resource: " + message
	return err
}

// A plan is how an allowed request for a view is served.
type plan struct {
	user    user.Info
	creator user.Info     // of new workspaces; nil for the user
	grant   *auth.Grant   // instead of roles and bindings
	finish  *admit.Finish // all that may be written
	query   url.Values    // instead of the client's; nil for that
	lasts   bool          // ends when its cluster leaves the view
	page    http.Handler  // answers, instead of the server
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
		p, err := v.plan(req, r)
		if err != nil {
			v.refuse(w, req, err)
			return
		}
		audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", "allow", "authorization.k8s.io/reason", "the user may "+r.view.verb+" "+r.id)
		next.ServeHTTP(w, req.WithContext(context.WithValue(ctx, planKey{}, p)))
	})
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
		v.refuse(w, req, &refusal{authorizer.AttributesRecord{User: u, Verb: "impersonate", Path: r.Path}, "requests through a view cannot impersonate; come as the user who may use the view"})
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
		p, planned := ctx.Value(planKey{}).(*plan)
		switch {
		case !ok:
			next.ServeHTTP(w, req)
			return
		case !planned:
			v.refuse(w, req, apierrors.NewInternalError(errors.New("a request for a view that nobody decided on")))
			return
		case p.page != nil:
			p.page.ServeHTTP(w, req)
			return
		}
		ctx = request.WithUser(cluster.With(ctx, r.Cluster), p.user)
		if p.creator != nil {
			ctx = tenancy.WithCreator(ctx, p.creator)
		}
		if p.grant != nil {
			ctx = auth.WithGrant(ctx, p.grant)
		}
		if p.finish != nil {
			ctx = admit.WithFinish(ctx, *p.finish)
		}
		if p.lasts {
			var ended func()
			ctx, ended = v.lasting.until(ctx, r.Cluster, func(ctx context.Context) bool { return v.has(ctx, r) })
			defer func() { serve.WhenServed(ctx, ended) }()
		}
		inside := req.WithContext(ctx)
		if p.query != nil {
			u := *req.URL
			u.RawQuery = p.query.Encode()
			inside.URL, inside.RequestURI = &u, u.RequestURI()
		}
		next.ServeHTTP(w, inside)
	})
}

// A refusal is a 403 error with the attributes of the request.
type refusal struct {
	attributes authorizer.Attributes
	reason     string
}

// Error implements error.
func (r *refusal) Error() string { return r.reason }

func (v *Views) refuse(w http.ResponseWriter, req *http.Request, err error) {
	var forbidden *refusal
	if errors.As(err, &forbidden) {
		audit.AddAuditAnnotations(req.Context(), "authorization.k8s.io/decision", "forbid", "authorization.k8s.io/reason", forbidden.reason)
		responsewriters.Forbidden(forbidden.attributes, w, req, forbidden.reason, v.config.Serializer)
		return
	}
	responsewriters.ErrorNegotiated(err, v.config.Serializer, schema.GroupVersion{}, w, req)
}
