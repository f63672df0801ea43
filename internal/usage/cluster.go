package usage

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/view"
)

// Clusters serves what a logical cluster stores, from the ledger in memory. Nothing is measured
// between requests. Whoever may get the subresource sees the sum of everything below, but no names.
type Clusters struct {
	Ledger *feed.Ledger
	Tree   *tenancy.Tree
	// Compute runs f within the share of processor time of the cluster's tenant.
	Compute func(ctx context.Context, c cluster.Name, f func()) error
}

// ServeHTTP serves the usage of the LogicalCluster of a request.
func (u *Clusters) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	respond(w, req, u.answer)
}

func (u *Clusters) answer(req *http.Request) (*core.LogicalClusterUsage, error) {
	info, _ := request.RequestInfoFrom(req.Context())
	gr := tenancy.LogicalClusters().GroupResource()
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
	if report.Resources = u.stored(c); report.Resources == nil {
		report.Resources = []core.StoredResource{}
	}
	for _, r := range report.Resources {
		add(&report.Total, r.Stored)
	}
	return report, u.Compute(req.Context(), c, func() { u.below(req.Context(), c, &report.Below) })
}

// stored returns what a cluster stores, sorted. Resources of one name with several identities
// count together.
func (u *Clusters) stored(c cluster.Name) []core.StoredResource {
	var all []core.StoredResource
	for r, n := range u.Ledger.Of(c) {
		if r.Root == keys.System {
			continue
		}
		s := core.Stored{Objects: n.Objects, Bytes: n.Bytes}
		i := slices.IndexFunc(all, func(o core.StoredResource) bool { return o.Group == r.Group && o.Resource == r.Resource })
		if i < 0 {
			all = append(all, core.StoredResource{Group: r.Group, Resource: r.Resource, Stored: s})
			continue
		}
		add(&all[i].Stored, s)
	}
	slices.SortFunc(all, func(a, b core.StoredResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	return all
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
			for r, n := range u.Ledger.Of(child.Cluster) {
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
