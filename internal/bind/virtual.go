package bind

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
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

func (v *Virtual) storage() serve.Storage {
	if v.GroupKind == cacheapi.GroupVersion.WithKind("ClusterCachedResourceEndpointSlice").GroupKind() {
		return serve.Cached
	}
	return serve.Remote
}

// virtual returns the virtual storage of a resource, nil if it has none.
func (e *Export) virtual(gr schema.GroupResource) *Virtual {
	i := slices.IndexFunc(e.Resources, func(r Exported) bool { return r.GroupResource == gr })
	if i < 0 {
		return nil
	}
	return e.Resources[i].Virtual
}

// exported returns where the objects of a virtual resource of an export are. Without the export
// they can only be read, which then fails.
func (a *APIs) exported(name ExportName, gr schema.GroupResource) serve.Storage {
	if e, ok := a.Exports.Get(name.Cluster, "", name.Name); ok {
		if v := e.virtual(gr); v != nil {
			return v.storage()
		}
	}
	return serve.Cached
}

// storage returns where the objects of a bound resource are.
func (b *Bindings) storage(e ExportName, bound Bound) serve.Storage {
	if !bound.Virtual {
		return serve.Stored
	}
	return b.exported(e, bound.GroupResource)
}

func unavailable(gr schema.GroupResource, why string) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the objects of %s cannot be reached: %s", gr, why))
}

// Origin returns where the objects of a resource are that cluster c has through a binding, and
// that is served as f.
func (a *APIs) Origin(ctx context.Context, c cluster.Name, gr schema.GroupResource, f serve.Found) (*serve.Origin, error) {
	_, b := a.Bindings.Owner(c, gr)
	if b == nil {
		return nil, unavailable(gr, "the APIBinding has just been deleted")
	}
	e, ok := a.Exports.Get(b.Export.Cluster, "", b.Export.Name)
	if !ok || e.Deleting {
		return nil, unavailable(gr, "the provider has deleted the APIExport")
	}
	if e.Identity != f.Identity || b.Replaced {
		return nil, unavailable(gr, "the APIExport has another identity than when it was bound")
	}
	v := e.virtual(gr)
	switch {
	case v == nil:
		return nil, unavailable(gr, "the APIExport does not have the resource any more, or stores it otherwise")
	case v.storage() != f.Content.Storage():
		return nil, unavailable(gr, "the APIExport has just changed; try again")
	case v.storage() == serve.Remote:
		return a.remote(ctx, c, &elsewhere{b.Export, v, gr, f.Identity})
	}
	return a.copies(&elsewhere{b.Export, v, gr, f.Identity}, f)
}

// An elsewhere is a virtual resource of an export.
type elsewhere struct {
	export ExportName
	*Virtual
	resource schema.GroupResource
	identity string // of the export
}

// copies returns the origin of a resource with the objects of a ClusterCachedResource.
func (a *APIs) copies(of *elsewhere, f serve.Found) (*serve.Origin, error) {
	gr, at := of.resource, of.export.Cluster
	s, ok := a.CachedSlices.Get(at, "", of.Name)
	if !ok {
		return nil, unavailable(gr, "the ClusterCachedResourceEndpointSlice of the provider does not exist")
	}
	if !a.selects(at, s.Partition) {
		return nil, unavailable(gr, "the Partition of the provider does not select this shard")
	}
	name := ExportName{at, s.Cached}
	r, in, err := a.cached(name)
	switch {
	case err != nil:
		return nil, unavailable(gr, err.Error())
	case r.GroupResource != gr || r.Identity != of.Identity:
		return nil, unavailable(gr, "the ClusterCachedResource of the provider is of another resource, or has another identity than the APIExport says")
	}
	if why := unlike(in.Content, f.Content); why != "" {
		return nil, unavailable(gr, why)
	}
	o := a.origin(name, r, in)
	o.Covers = a.readers.covers(func() int64 { return max(a.publishedSince(of.export), a.slicedSince(at, s.Own)) })
	a.readers.follow(o, func() bool {
		return a.refers(of) && a.slices(at, s)
	}, ExportResource().Key(at, "", of.export.Name), a.Kinds.CachedSlices.Key(at, "", of.Name))
	return o, nil
}

// refers reports whether the objects of a resource of an export are still elsewhere.
func (a *APIs) refers(of *elsewhere) bool {
	e, ok := a.Exports.Get(of.export.Cluster, "", of.export.Name)
	if !ok || e.Deleting || e.Identity != of.identity {
		return false
	}
	now := e.virtual(of.resource)
	return now != nil && *now == *of.Virtual
}

// slices reports whether an endpoint slice of a cluster still is like s.
func (a *APIs) slices(c cluster.Name, s *Slice) bool {
	now, ok := a.CachedSlices.Get(c, "", s.Own)
	return ok && now.like(s)
}

// publishedSince returns the revision at which an export got its virtual resources, at the latest.
func (a *APIs) publishedSince(name ExportName) int64 {
	if e, ok := a.Exports.Get(name.Cluster, "", name.Name); ok {
		return e.Since
	}
	return 0
}

// slicedSince returns the revision at which an endpoint slice got its values, at the latest.
func (a *APIs) slicedSince(c cluster.Name, slice string) int64 {
	if s, ok := a.CachedSlices.Get(c, "", slice); ok {
		return s.Since
	}
	return 0
}

// unlike says why objects cannot be served as another definition describes them, "" if they can.
func unlike(stored, served *serve.Content) string {
	from, to := stored.Definition.Spec, served.Definition.Spec
	if from.Scope != to.Scope {
		return fmt.Sprintf("they are %s for the provider, and %s in the APIResourceSchema", from.Scope, to.Scope)
	}
	for _, v := range from.Versions {
		if v.Storage && !slices.ContainsFunc(to.Versions, func(o apiextensionsv1.CustomResourceDefinitionVersion) bool { return o.Name == v.Name }) {
			return fmt.Sprintf("the provider stores version %s, which the APIResourceSchema lacks", v.Name)
		}
	}
	return ""
}

// cached returns a ClusterCachedResource, and how its cluster serves the resource.
func (a *APIs) cached(name ExportName) (*Cached, serve.Found, error) {
	r, ok := a.Cached.Get(name.Cluster, "", name.Name)
	if !ok || r.Deleting {
		return nil, serve.Found{}, errors.New("the ClusterCachedResource of the provider does not exist")
	}
	in, err := a.source(name.Cluster, r.GroupResource, r.Version)
	if err != nil {
		return nil, in, errors.New("the provider has no such resource that can be cached")
	}
	return r, in, nil
}

// origin returns the origin of the objects of a ClusterCachedResource. Call [readers.covers] and
// [readers.follow] for it.
func (a *APIs) origin(name ExportName, r *Cached, in serve.Found) *serve.Origin {
	return &serve.Origin{Cluster: name.Cluster, Found: in, Part: r.Part, Scope: func() (store.Scope, func()) {
		set, done := a.readers.members.Use(name)
		return store.Scope{Set: set, Sparse: true}, done
	}}
}

// ExportOfSlice returns the name of the export of a ClusterCachedResourceEndpointSlice. A slice that
// does not exist seems to be of an export of its name.
func (a *APIs) ExportOfSlice(c cluster.Name, slice string) string {
	if s, ok := a.CachedSlices.Get(c, "", slice); ok {
		return s.Name
	}
	return slice
}

// CachedThrough returns the objects of the ClusterCachedResource of an endpoint slice.
func (a *APIs) CachedThrough(c cluster.Name, slice string) (*serve.Origin, error) {
	s, ok := a.CachedSlices.Get(c, "", slice)
	if !ok {
		return nil, apierrors.NewNotFound(a.Kinds.CachedSlices.GroupResource(), slice)
	}
	name := ExportName{c, s.Cached}
	r, in, err := a.cached(name)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	o := a.origin(name, r, in)
	o.Covers = a.readers.covers(func() int64 { return a.slicedSince(c, slice) })
	a.readers.follow(o, func() bool { return a.slices(c, s) }, a.Kinds.CachedSlices.Key(c, "", slice))
	return o, nil
}
