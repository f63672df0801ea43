package server

import (
	"context"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

const clustersPrefix = "/clusters/"

// resolver finds the cluster at a path.
type resolver func(context.Context, cluster.Path) (cluster.Name, error)

// withCluster takes the cluster out of the request's path and puts it into its
// context. It is the edge of the server: below it a cluster is always a name, and
// nothing outside the grammar of names gets past it.
func withCluster(next http.Handler, resolve resolver) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
		name, err := parse(req.Context(), at, resolve)
		if err != nil {
			refuse(w, req, err)
			return
		}
		next.ServeHTTP(w, at1(req, name, path))
	})
}

func parse(ctx context.Context, at string, resolve resolver) (cluster.Name, error) {
	if at == string(cluster.All) {
		return cluster.All, nil
	}
	path, err := cluster.ParsePath(at)
	if err != nil {
		return "", apierrors.NewBadRequest(err.Error())
	}
	if name, ok := path.Name(); ok {
		return name, nil
	}
	return resolve(ctx, path)
}

// at1 returns the request as one to path in cluster c.
func at1(req *http.Request, c cluster.Name, path string) *http.Request {
	moved := req.WithContext(cluster.With(req.Context(), c))
	u := *req.URL
	u.Path, u.RawPath = path, ""
	if _, after, ok := strings.Cut(strings.TrimPrefix(req.URL.RawPath, clustersPrefix), "/"); ok && req.URL.RawPath != "" {
		u.RawPath = "/" + after
	}
	moved.URL = &u
	moved.RequestURI = u.RequestURI()
	return moved
}

// withTokensCluster sends a request without a cluster to that of the service
// account whose token it carries: in-cluster configurations know only the host.
func withTokensCluster(req *http.Request) *http.Request {
	if req.URL.Path == "/metrics" {
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
	return at1(req, c, req.URL.Path)
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
			refuse(w, req, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, strings.ToLower(req.Method), schema.GroupResource{}, "",
				"only get of lists and watches is possible in the `*` logical cluster", 0, true))
		case isSet(req, "sendInitialEvents"):
			refuse(w, req, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
				field.Forbidden(field.NewPath("sendInitialEvents"), "not possible in the `*` logical cluster; list, and then watch")}))
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// isSet reads a parameter as Kubernetes does: anything but 0 and false sets it.
func isSet(req *http.Request, parameter string) bool {
	values, ok := req.URL.Query()[parameter]
	return ok && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

func refuse(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{}, w, req)
}
