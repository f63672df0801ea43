package hooks

import (
	"slices"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	cache "github.com/unforked/kcp/apis/cache/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
	"github.com/unforked/kcp/internal/admit"
)

// protected reports whether hooks may not change the object of a request: its kind is one of the
// server. What such an object says is decided by rights that the user of the request has in other
// clusters, such as that to bind an export, or has as an operator. The owner of a hook would
// otherwise borrow the rights of whoever writes in their workspace.
func protected(r admit.Request) bool {
	groups := []string{apisv1alpha1.GroupVersion.Group, cache.GroupVersion.Group, core.GroupVersion.Group, tenancyapi.GroupVersion.Group, topology.GroupVersion.Group}
	return slices.Contains(groups, r.GetResource().Group)
}
