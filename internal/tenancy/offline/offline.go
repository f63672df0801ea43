// Package offline refuses requests to logical clusters that do not serve: inactive ones, ones
// whose workspace is unavailable, and ones that do not exist.
package offline

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Clusters holds the set of inactive clusters. When a cluster becomes inactive, it ends the
// watches of that cluster, and the watches of all clusters. It follows the change feed
// after the tree of workspaces, which it reads.
type Clusters struct {
	tree  *tree.Tree
	fresh func(context.Context) bool

	mu         sync.RWMutex
	now        map[cluster.Name]struct{}
	watching   map[cluster.Name]map[*context.CancelFunc]struct{}
	rebuilding bool
}

// New returns the inactive clusters. It adds them to the change feed, after the tree.
func New(t *tree.Tree, s *store.Store) *Clusters {
	i := &Clusters{
		tree: t, fresh: s.Feed().Fresh, now: map[cluster.Name]struct{}{}, watching: map[cluster.Name]map[*context.CancelFunc]struct{}{},
	}
	s.Feed().Follow(i)
	return i
}

// Reset implements [feed.Follower].
func (i *Clusters) Reset() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rebuilding = true // the tree keeps its old state until it is rebuilt
}

// Apply implements [feed.Follower].
func (i *Clusters) Apply(e feed.Event) {
	if e.Key.Resource != tree.LogicalClusters() {
		return
	}
	is := i.tree.Inactive(e.Key.Cluster)
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, was := i.now[e.Key.Cluster]; i.rebuilding || is == was {
		return
	}
	if !is {
		delete(i.now, e.Key.Cluster)
		return
	}
	i.now[e.Key.Cluster] = struct{}{}
	i.end(e.Key.Cluster, cluster.All)
}

// Done implements [feed.Follower].
func (i *Clusters) Done() {
	now := map[cluster.Name]struct{}{}
	for _, c := range i.tree.AllInactive() {
		now[c] = struct{}{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rebuilding = false
	was := i.now
	i.now = now
	for c := range now {
		if _, before := was[c]; !before {
			i.end(c, cluster.All)
		}
	}
}

// end ends the watches of clusters.
func (i *Clusters) end(clusters ...cluster.Name) {
	for _, c := range clusters {
		for cancel := range i.watching[c] {
			(*cancel)()
		}
	}
}

func (i *Clusters) is(c cluster.Name) bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	_, is := i.now[c]
	return is
}

// watch returns a context for a watch of cluster c, which ends when c becomes inactive. If
// c is [cluster.All], it ends when any cluster does. The caller calls the returned function
// when the watch has ended.
func (i *Clusters) watch(ctx context.Context, c cluster.Name) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.watching[c] == nil {
		i.watching[c] = map[*context.CancelFunc]struct{}{}
	}
	i.watching[c][&cancel] = struct{}{}
	return ctx, func() {
		cancel()
		i.mu.Lock()
		defer i.mu.Unlock()
		if delete(i.watching[c], &cancel); len(i.watching[c]) == 0 {
			delete(i.watching, c)
		}
	}
}

// WithoutInactive refuses requests to inactive clusters, except those that are needed to
// activate them again. It is inside authorization: users who may not enter a cluster
// cannot see that it is inactive.
func (i *Clusters) WithoutInactive(next http.Handler, longRunning func(*http.Request, *request.RequestInfo) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, ok := cluster.From(ctx)
		if !ok || inprocess.IsLoop(ctx) || servedInactive(req.URL.Path) {
			next.ServeHTTP(w, req)
			return
		}
		if info, ok := request.RequestInfoFrom(ctx); ok && longRunning(req, info) {
			// The watch is registered before the cluster is checked. So it also ends if
			// the cluster becomes inactive in between.
			var ended func()
			ctx, ended = i.watch(ctx, c)
			defer func() { response.WhenServed(ctx, ended) }()
			req = req.WithContext(ctx)
		}
		if i.is(c) && (!i.fresh(ctx) || i.is(c)) {
			edge.Refuse(w, req, apierrors.NewForbidden(tree.LogicalClusters().GroupResource(), string(c), errors.New("logical cluster is marked inactive")))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// WithoutUnavailable answers 503 to requests that address an Unavailable workspace by path.
// Requests by name pass, so that administrators can repair the workspace. It is inside
// authorization, like WithoutInactive.
func (i *Clusters) WithoutUnavailable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		p, ok := edge.Path(ctx)
		if ok && i.tree.Unavailable(p) && !isHealth(req.URL.Path) && (!i.fresh(ctx) || i.tree.Unavailable(p)) {
			http.Error(w, "Not available.", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// servedInactive reports whether inactive clusters serve a path.
func servedInactive(path string) bool {
	return isHealth(path) || under(path, "/openapi") || under(path, "/apis/"+core.GroupVersion.String()+"/logicalclusters")
}

// isHealth reports whether a path is a health endpoint. Anonymous users may get these. So
// all clusters serve them, also inactive and missing ones: a refusal would show which
// clusters exist.
func isHealth(path string) bool {
	return under(path, "/healthz") || under(path, "/livez") || under(path, "/readyz")
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
