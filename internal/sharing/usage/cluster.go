package usage

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/tenancy/tree"
	"github.com/unforked/kcp/internal/view"
)

// Clusters serves what a logical cluster stores, from the ledger in memory, and its requests.
// Users who may get the subresource see the sum of everything below, but no names.
type Clusters struct {
	Feed *feed.Feed
	Tree *tree.Tree
	// Requests has the requests of each cluster.
	Requests *Requests
	// Compute runs f within the share of processor time of the cluster's tenant.
	Compute func(ctx context.Context, c cluster.Name, f func()) error
}

// ServeHTTP serves the usage of the LogicalCluster of a request.
func (u *Clusters) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	respond(w, req, u.answer)
}

func (u *Clusters) answer(req *http.Request) (*core.LogicalClusterUsage, error) {
	info, _ := request.RequestInfoFrom(req.Context())
	gr := tree.LogicalClusters().GroupResource()
	c, err := cluster.One(req.Context())
	_, viewed := view.From(req.Context())
	switch {
	case err != nil, viewed, info.APIVersion != core.GroupVersion.Version, info.Name != core.LogicalClusterName:
		return nil, apierrors.NewNotFound(gr, info.Name+"/"+Subresource)
	case req.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(gr, info.Verb)
	}
	if _, exists := u.Tree.Cluster(c); !exists {
		return nil, apierrors.NewNotFound(gr, info.Name)
	}
	report := &core.LogicalClusterUsage{Path: string(u.Tree.PathOf(c))}
	report.SetGroupVersionKind(core.GroupVersion.WithKind("LogicalClusterUsage"))
	if err := u.Feed.CatchUp(req.Context()); err != nil { // so that the ledger has what the client has written
		return nil, err
	}
	counted, err := u.Requests.Of(req.Context(), c)
	if err != nil {
		return nil, err
	}
	report.Resources = u.resources(c, counted[c])
	for _, r := range report.Resources {
		add(&report.Total, r.Stored)
	}
	return report, u.Compute(req.Context(), c, func() { u.below(req.Context(), c, &report.Below) })
}

// resources returns the usage of each resource of a cluster, sorted. Resources of one name with
// several identities count together.
func (u *Clusters) resources(c cluster.Name, requests counts) []core.StoredResource {
	all := map[schema.GroupResource]*core.StoredResource{}
	of := func(gr schema.GroupResource) *core.StoredResource {
		if all[gr] == nil {
			all[gr] = &core.StoredResource{Group: gr.Group, Resource: gr.Resource}
		}
		return all[gr]
	}
	for r, n := range u.Feed.Ledger().Of(c) {
		if r.Root != keys.System {
			add(&of(r.GroupResource()).Stored, core.Stored{Objects: n.Objects, Bytes: n.Bytes})
		}
	}
	for text, v := range requests {
		r := of(counted(text))
		if r.Requests == nil {
			r.Requests = verbs{}
		}
		verbs(r.Requests).add(v)
	}
	for text, n := range u.Requests.Watches(c) {
		of(counted(text)).Watches += n
	}
	sorted := make([]core.StoredResource, 0, len(all))
	for _, r := range all {
		sorted = append(sorted, *r)
	}
	slices.SortFunc(sorted, func(a, b core.StoredResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	return sorted
}

// below adds what the workspaces below a cluster store.
func (u *Clusters) below(ctx context.Context, top cluster.Name, to *core.StoredBelow) {
	for next := []cluster.Name{top}; len(next) > 0 && ctx.Err() == nil; {
		c := next[len(next)-1]
		next = next[:len(next)-1]
		for _, child := range u.Tree.Children(c) {
			if root, exists := u.Tree.Cluster(child.Cluster); !exists || root.Parent != c {
				continue // a mount, not created yet, or another's
			}
			to.Workspaces++
			for r, n := range u.Feed.Ledger().Of(child.Cluster) {
				if r.Root != keys.System {
					add(&to.Stored, core.Stored{Objects: n.Objects, Bytes: n.Bytes})
				}
			}
			next = append(next, child.Cluster)
		}
	}
}

func add(to *core.Stored, s core.Stored) {
	to.Objects += s.Objects
	to.Bytes += s.Bytes
}
