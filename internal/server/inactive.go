package server

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
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// inactive knows the clusters that an operator has taken offline, and ends their open
// watches, and those of all clusters, when he does. It follows the spine, after the
// tree of workspaces.
type inactive struct {
	tree  *tenancy.Tree
	fresh func(context.Context) bool

	mu         sync.RWMutex
	now        map[cluster.Name]struct{}
	watching   map[cluster.Name]map[*context.CancelFunc]struct{}
	rebuilding bool
}

func newInactive(t *tenancy.Tree, s *store.Store) *inactive {
	i := &inactive{
		tree: t, fresh: s.Spine().Fresh, now: map[cluster.Name]struct{}{}, watching: map[cluster.Name]map[*context.CancelFunc]struct{}{},
	}
	s.Spine().Follow(i)
	return i
}

// Reset implements [store.Follower].
func (i *inactive) Reset() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rebuilding = true // the tree is as before until it is done
}

// Apply implements [store.Follower].
func (i *inactive) Apply(e store.Event) {
	if e.Key.Resource != tenancy.LogicalClusters() {
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

// Done implements [store.Follower].
func (i *inactive) Done() {
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
func (i *inactive) end(clusters ...cluster.Name) {
	for _, c := range clusters {
		for cancel := range i.watching[c] {
			(*cancel)()
		}
	}
}

func (i *inactive) is(c cluster.Name) bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	_, is := i.now[c]
	return is
}

// watch returns a context for a watch in cluster c, or all, which ends when the cluster,
// or any, goes offline. The function returned must be called when the watch has ended.
func (i *inactive) watch(ctx context.Context, c cluster.Name) (context.Context, func()) {
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

// withoutInactive refuses what is asked of clusters that are offline, but for what it
// takes to bring them back. It comes after authorization: to those who may not enter
// such a cluster looks like any other.
func (s *Server) withoutInactive(next http.Handler, longRunning func(*http.Request, *request.RequestInfo) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, ok := cluster.From(ctx)
		if !ok || isOwnLoop(ctx) || servedInactive(req.URL.Path) {
			next.ServeHTTP(w, req)
			return
		}
		if info, ok := request.RequestInfoFrom(ctx); ok && longRunning(req, info) {
			// It is known before the cluster is looked at, so that nobody overlooks it
			// who takes the cluster offline now.
			var ended func()
			ctx, ended = s.inactive.watch(ctx, c)
			defer func() { serve.WhenServed(ctx, ended) }()
			req = req.WithContext(ctx)
		}
		if s.inactive.is(c) && (!s.inactive.fresh(ctx) || s.inactive.is(c)) {
			refuse(w, req, apierrors.NewForbidden(tenancy.LogicalClusters().GroupResource(), string(c), errors.New("logical cluster is marked inactive")))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// withoutUnavailable answers 503 to what is asked of workspaces, by their paths, that say
// they cannot be served. By name they are reached, by whoever sees to that. It comes after
// authorization, as withoutInactive does.
func (s *Server) withoutUnavailable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		p, ok := ctx.Value(pathKey{}).(cluster.Path)
		if ok && s.tree.Unavailable(p) && !isHealth(req.URL.Path) && (!s.inactive.fresh(ctx) || s.tree.Unavailable(p)) {
			http.Error(w, "Not available.", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// phaseAt returns how far the life of the cluster at a path has come: that is Ready only if
// it is available there.
func (s *Server) phaseAt(p cluster.Path, root tenancy.Root) core.Phase {
	if root.Phase == core.PhaseReady && s.tree.Unavailable(p) {
		return core.PhaseUnavailable
	}
	return root.Phase
}

// servedInactive reports whether what is at a path is served by clusters that are
// offline.
func servedInactive(path string) bool {
	return isHealth(path) || under(path, "/openapi") || under(path, "/apis/"+core.GroupVersion.String()+"/logicalclusters")
}

// isHealth reports whether a path is one of the health of the process. It is open to
// strangers, who would be told which clusters there are if it were not served by all.
func isHealth(path string) bool {
	return under(path, "/healthz") || under(path, "/livez") || under(path, "/readyz")
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
