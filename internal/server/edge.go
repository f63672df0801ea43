package server

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
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/view"
)

const clustersPrefix = "/clusters/"

// maxPath bounds the paths of clusters in requests. Deeper ones are reached by name.
const maxPath = 8 << 10 // bytes

// resolver finds the cluster at a path, or how far the path leads and the name of
// the Workspace that is missing there.
type resolver func(context.Context, cluster.Path) (n cluster.Name, missing string)

// withCluster takes the cluster out of the request's path and puts it into its
// context. It is the edge of the server: below it a cluster is always a name, and
// nothing outside the grammar of names gets past it.
func withCluster(next http.Handler, resolve resolver) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if climbs(req.URL.Path) {
			refuse(w, req, apierrors.NewBadRequest(`the path has a segment "." or ".."; write the path that you mean`))
			return
		}
		rest, ok := strings.CutPrefix(req.URL.Path, clustersPrefix)
		if !ok {
			next.ServeHTTP(w, withTokensCluster(req))
			return
		}
		at, path, _ := strings.Cut(rest, "/")
		path = "/" + path
		if path == "/metrics" {
			http.Error(w, "metrics are served for the whole server at /metrics, not for one logical cluster", http.StatusNotImplemented)
			return
		}
		if at == string(cluster.All) {
			next.ServeHTTP(w, inCluster(req, cluster.All, path))
			return
		}
		p, err := parse(at)
		if err != nil {
			refuse(w, req, apierrors.NewBadRequest(err.Error()))
			return
		}
		name, missing := resolve(req.Context(), p)
		if missing != "" {
			req = req.WithContext(context.WithValue(req.Context(), nowhereKey{}, brokenPath{p, name, missing}))
			name = cluster.NewName() // one that no cluster has
		}
		if _, direct := p.Name(); !direct && missing == "" {
			req = req.WithContext(context.WithValue(req.Context(), pathKey{}, p))
		}
		next.ServeHTTP(w, inCluster(req, name, path))
	})
}

// pathKey is that of the path which a request names its cluster by, if not by its name.
type pathKey struct{}

// climbs reports whether a path has segments that mean others than themselves.
func climbs(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

func parse(at string) (cluster.Path, error) {
	if len(at) > maxPath {
		return "", fmt.Errorf("the path of a logical cluster in a request has at most %d characters; use the name of the cluster", maxPath)
	}
	return cluster.ParsePath(at)
}

type nowhereKey struct{}

// A brokenPath leads to no cluster.
type brokenPath struct {
	path cluster.Path
	// in is the cluster that it leads to before it breaks off, where there is no
	// Workspace of that name.
	in      cluster.Name
	missing string
}

// withBrokenPaths answers 404 to requests whose path leads nowhere, but only to
// those who might ask for the Workspace that is missing. To others such a path
// looks like one to a cluster that they may not enter.
func withBrokenPaths(next http.Handler, a authorizer.Authorizer) http.Handler {
	workspaces := tenancyapi.GroupVersion.WithResource("workspaces")
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		broken, ok := req.Context().Value(nowhereKey{}).(brokenPath)
		if !ok {
			next.ServeHTTP(w, req)
			return
		}
		u, _ := request.UserFrom(req.Context())
		decision, _, err := a.Authorize(cluster.With(req.Context(), broken.in), authorizer.AttributesRecord{
			User: u, Verb: "get", APIGroup: workspaces.Group, APIVersion: workspaces.Version, Resource: workspaces.Resource, Name: broken.missing, ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			refuse(w, req, apierrors.NewNotFound(workspaces.GroupResource(), string(broken.path)))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// inCluster returns the request as one to path in cluster c.
func inCluster(req *http.Request, c cluster.Name, path string) *http.Request {
	moved := req.WithContext(withAsked(cluster.With(req.Context(), c), req.URL))
	u := *req.URL
	u.Path, u.RawPath = path, "" // how the client wrote it counts for nothing
	moved.URL = &u
	moved.RequestURI = u.RequestURI()
	return moved
}

// withTokensCluster sends a request without a cluster to that of the service
// account whose token it carries: in-cluster configurations know only the host.
func withTokensCluster(req *http.Request) *http.Request {
	if req.URL.Path == "/metrics" || slices.Contains(questions(), req.URL.Path) {
		return req // of the whole server
	}
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return req
	}
	c, ok := auth.ClusterOfToken(strings.TrimSpace(token))
	if !ok {
		return req
	}
	return inCluster(req, c, req.URL.Path)
}

// withoutWildcardWrites refuses what can be done in one cluster only. A watch that
// begins with a list is among that: clients collect such a list by namespace and
// name, so that of objects of one name in several clusters all but one were lost.
// They list and then watch instead when they are told that it is invalid.
func withoutWildcardWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := cluster.From(req.Context())
		switch {
		case c != cluster.All:
			next.ServeHTTP(w, req)
		case req.Method != http.MethodGet:
			refuse(w, req, notOfAll(verbOf(req.Method)))
		case view.IsSet(req, "sendInitialEvents"):
			refuse(w, req, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
				field.Forbidden(field.NewPath("sendInitialEvents"), "not possible in the `*` logical cluster; list, and then watch")}))
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// withoutWildcardGets refuses what can be read in one cluster only. It comes after it is
// known what a request is for.
func withoutWildcardGets(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, _ := cluster.From(req.Context())
		info, ok := request.RequestInfoFrom(req.Context())
		if c == cluster.All && ok && info.IsResourceRequest && info.Verb != "list" && info.Verb != "watch" {
			refuse(w, req, notOfAll(info.Verb))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// notOfAll is the answer to what can be done in one cluster only.
func notOfAll(verb string) error {
	err := apierrors.NewMethodNotSupported(schema.GroupResource{}, verb)
	err.ErrStatus.Message = verb + " is not possible in all logical clusters at once: only list and watch are in the `*` logical cluster"
	return err
}

// verbOf returns what the API calls a method that writes.
func verbOf(method string) string {
	verbs := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}
	if verb, ok := verbs[method]; ok {
		return verb
	}
	return strings.ToLower(method)
}

func refuse(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{}, w, req)
}
