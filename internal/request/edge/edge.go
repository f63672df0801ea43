// Package edge moves the logical cluster of a request from its URL into its context: in all
// handlers inside [WithCluster], the cluster of a request is a valid name.
//
// It also writes the refusals that belong to no other package: invalid paths, requests to all
// clusters, and outages of etcd.
package edge

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/view"
)

// Prefix begins the URL path of requests to a logical cluster.
const Prefix = "/clusters/"

// maxPath is the maximum length of cluster paths in requests. Clusters with longer paths
// are addressed by name.
const maxPath = 8 << 10 // bytes

// A Resolver returns the cluster at a path. If a Workspace on the path is missing, it returns
// the name of that Workspace and the cluster in which it is missing.
type Resolver func(context.Context, cluster.Path) (n cluster.Name, missing string)

// WithCluster moves the cluster from the URL of a request into its context. It is the only
// place that parses clusters in URLs. The paths in clusterless belong to no cluster: there, a
// token does not choose one.
func WithCluster(next http.Handler, resolve Resolver, clusterless []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if HasDotSegment(req.URL.Path) {
			Refuse(w, req, apierrors.NewBadRequest(`the path has a segment "." or ".."; resolve it before you send the request`))
			return
		}
		rest, ok := strings.CutPrefix(req.URL.Path, Prefix)
		if !ok {
			next.ServeHTTP(w, withTokensCluster(req, clusterless))
			return
		}
		at, path, _ := strings.Cut(rest, "/")
		path = "/" + path
		if path == "/metrics" {
			http.Error(w, "metrics are served for the whole server at /metrics, not for one logical cluster", http.StatusNotImplemented)
			return
		}
		if at == string(cluster.All) {
			withIdentity(w, InCluster(req, cluster.All, path), next)
			return
		}
		p, err := ParsePath(at)
		if err != nil {
			Refuse(w, req, apierrors.NewBadRequest(err.Error()))
			return
		}
		name, missing := resolve(req.Context(), p)
		if missing != "" {
			req = req.WithContext(context.WithValue(req.Context(), brokenKey{}, BrokenPath{p, name, missing}))
			name = cluster.NewName() // a new name, so no such cluster exists
		}
		if _, direct := p.Name(); !direct && missing == "" {
			noteResolved(req.Context(), p, name)
			req = req.WithContext(context.WithValue(req.Context(), pathKey{}, p))
		}
		withIdentity(w, InCluster(req, name, path), next)
	})
}

type pathKey struct{}

// Path returns the path of the cluster in the URL of a request. Requests that name the cluster
// have no path.
func Path(ctx context.Context) (cluster.Path, bool) {
	p, ok := ctx.Value(pathKey{}).(cluster.Path)
	return p, ok
}

// HasDotSegment reports whether a path has a segment "." or "..".
func HasDotSegment(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// ParsePath parses the path of a cluster in a request.
func ParsePath(at string) (cluster.Path, error) {
	if len(at) > maxPath {
		return "", fmt.Errorf("the path of a logical cluster in a request has at most %d characters; use the name of the cluster", maxPath)
	}
	return cluster.ParsePath(at)
}

type brokenKey struct{}

// A BrokenPath is a path on which a Workspace is missing.
type BrokenPath struct {
	// Path is the whole path.
	Path cluster.Path
	// In is the cluster in which the Workspace with the name Missing does not exist.
	In      cluster.Name
	Missing string
}

// Broken returns the path of a request whose path leads to no cluster. The cluster of such a
// request has a random name and does not exist.
func Broken(ctx context.Context) (BrokenPath, bool) {
	b, ok := ctx.Value(brokenKey{}).(BrokenPath)
	return b, ok
}

// WithBrokenPaths answers 404 to requests with a broken path if the user may get the
// missing Workspace. Other users get the same 403 as for a cluster that they may not
// enter.
func WithBrokenPaths(next http.Handler, a authorizer.Authorizer) http.Handler {
	workspaces := tenancyapi.GroupVersion.WithResource("workspaces")
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		broken, ok := Broken(req.Context())
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		u, _ := request.UserFrom(req.Context())
		decision, _, err := a.Authorize(cluster.With(req.Context(), broken.In), authorizer.AttributesRecord{
			User: u, Verb: "get", APIGroup: workspaces.Group, APIVersion: workspaces.Version, Resource: workspaces.Resource, Name: broken.Missing, ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			Refuse(w, req, apierrors.NewNotFound(workspaces.GroupResource(), string(broken.Path)))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// InCluster returns a copy of the request with cluster c in its context and path as its
// URL path.
func InCluster(req *http.Request, c cluster.Name, path string) *http.Request {
	moved := req.WithContext(withRequested(cluster.With(req.Context(), c), req.URL))
	u := *req.URL
	u.Path, u.RawPath = path, "" // handlers see the decoded path only
	moved.URL = &u
	moved.RequestURI = u.RequestURI()
	return moved
}

// withTokensCluster puts a request without a cluster into the cluster of the service
// account whose token it has. In-cluster configurations contain only the host.
func withTokensCluster(req *http.Request, clusterless []string) *http.Request {
	if req.URL.Path == "/metrics" || slices.Contains(clusterless, req.URL.Path) {
		return req // these paths belong to no cluster
	}
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return req
	}
	c, ok := authn.ClusterOfToken(strings.TrimSpace(token))
	if !ok {
		return req
	}
	return InCluster(req, c, req.URL.Path)
}

// WithoutWildcardWrites refuses writes to all clusters, and watches of all clusters that
// begin with a list. Clients index the initial events of such a watch by namespace and
// name, so objects of one name in several clusters would overwrite each other. After the
// 422 client-go lists and then watches.
func WithoutWildcardWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := cluster.From(req.Context())
		switch {
		case c != cluster.All:
			next.ServeHTTP(w, req)
		case req.Method != http.MethodGet:
			Refuse(w, req, notOfAll(verbOf(req.Method)))
		case view.IsSet(req, "sendInitialEvents"):
			Refuse(w, req, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
				field.Forbidden(field.NewPath("sendInitialEvents"), "not possible in the `*` logical cluster; list, and then watch")}))
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// WithoutWildcardGets refuses requests to all clusters other than lists and watches. It
// needs the RequestInfo in the context.
func WithoutWildcardGets(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := cluster.From(req.Context())
		info, ok := request.RequestInfoFrom(req.Context())
		if c == cluster.All && ok && info.IsResourceRequest && info.Verb != "list" && info.Verb != "watch" {
			Refuse(w, req, notOfAll(info.Verb))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// notOfAll returns the error for verbs that all clusters together do not serve.
func notOfAll(verb string) error {
	err := apierrors.NewMethodNotSupported(schema.GroupResource{}, verb)
	err.ErrStatus.Message = verb + " is not possible in all logical clusters at once: only list and watch are in the `*` logical cluster"
	return err
}

// verbOf returns the API verb of an HTTP method that writes.
func verbOf(method string) string {
	verbs := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}
	if verb, ok := verbs[method]; ok {
		return verb
	}
	return strings.ToLower(method)
}

// Refuse answers with an error as a Status, in the form that the client accepts.
func Refuse(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{}, w, req)
}
