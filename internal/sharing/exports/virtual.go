package exports

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// A Virtual is where the objects of an exported resource are, instead of the clusters of
// consumers.
type Virtual struct {
	schema.GroupKind        // of the object with the endpoints, which is in the cluster of the export
	Name             string // of that object
	Identity         string
}

func virtualOf(v *apisv1alpha2.VirtualStorage) *Virtual {
	if v == nil {
		return nil
	}
	out := &Virtual{Name: v.Reference.Name, Identity: v.IdentityHash}
	if out.Kind = v.Reference.Kind; v.Reference.APIGroup != nil {
		out.Group = *v.Reference.APIGroup
	}
	return out
}

// Storage returns the kind of storage.
func (v *Virtual) Storage() catalog.Storage {
	if v.GroupKind == cacheapi.GroupVersion.WithKind("ClusterCachedResourceEndpointSlice").GroupKind() {
		return catalog.Cached
	}
	return catalog.Remote
}

// Virtual returns the virtual storage of a resource, nil if it has none.
func (e *Export) Virtual(gr schema.GroupResource) *Virtual {
	i := slices.IndexFunc(e.Resources, func(r Exported) bool { return r.GroupResource == gr })
	if i < 0 {
		return nil
	}
	return e.Resources[i].Virtual
}

// Storage returns where the objects of a virtual resource of an export are. Without the export
// they can only be read, which then fails.
func (x *Exports) Storage(name Name, gr schema.GroupResource) catalog.Storage {
	if e, ok := x.Get(name.Cluster, "", name.Name); ok {
		if v := e.Virtual(gr); v != nil {
			return v.Storage()
		}
	}
	return catalog.Cached
}
