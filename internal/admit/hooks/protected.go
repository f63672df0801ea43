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
// server. Such an object can use rights that its writer has in other clusters, such as the right to
// bind an export, or has as an operator. A hook that changed the object would use these rights for
// its own author.
func protected(r admit.Request) bool {
	groups := []string{apisv1alpha1.GroupVersion.Group, cache.GroupVersion.Group, core.GroupVersion.Group, tenancyapi.GroupVersion.Group, topology.GroupVersion.Group}
	return slices.Contains(groups, r.GetResource().Group)
}
