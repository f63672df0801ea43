package virtual

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/registry"
)

func unavailable(gr schema.GroupResource, why string) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the objects of %s cannot be reached: %s", gr, why))
}

// Origin returns where the objects of a resource are that cluster c has through a binding, and
// that is served as f.
func (x *Storage) Origin(ctx context.Context, c cluster.Name, gr schema.GroupResource, f catalog.Found) (*serve.Origin, error) {
	o, err := x.applied(ctx, c, gr, f)
	if apierrors.IsServiceUnavailable(err) && x.store.Feed().Fresh(ctx) { // the missing change may just have been committed
		return x.applied(ctx, c, gr, f)
	}
	return o, err
}

// applied is [Storage.Origin] by the changes that are applied so far.
func (x *Storage) applied(ctx context.Context, c cluster.Name, gr schema.GroupResource, f catalog.Found) (*serve.Origin, error) {
	_, b := x.bindings.Owner(c, gr)
	if b == nil {
		return nil, unavailable(gr, "the APIBinding has just been deleted")
	}
	e, ok := x.exports.Get(b.Export.Cluster, "", b.Export.Name)
	if !ok || e.Deleting {
		return nil, unavailable(gr, "the provider has deleted the APIExport")
	}
	if e.Identity != f.Identity || b.Replaced {
		return nil, unavailable(gr, "the APIExport has another identity than when it was bound")
	}
	v := e.Virtual(gr)
	switch {
	case v == nil:
		return nil, unavailable(gr, "the APIExport does not have the resource any more, or stores it otherwise")
	case v.Storage() != f.Content.Storage():
		return nil, unavailable(gr, "the APIExport has just changed; try again")
	case v.Storage() == catalog.Remote:
		return x.remote(ctx, c, &elsewhere{b.Export, v, gr, f.Identity})
	}
	return x.copies(&elsewhere{b.Export, v, gr, f.Identity}, f)
}

// An elsewhere is a virtual resource of an export.
type elsewhere struct {
	export exports.Name
	*exports.Virtual
	resource schema.GroupResource
	identity string // of the export
}

// copies returns the origin of a resource with the objects of a ClusterCachedResource.
func (x *Storage) copies(of *elsewhere, f catalog.Found) (*serve.Origin, error) {
	gr, at := of.resource, of.export.Cluster
	s, ok := x.Slices.Get(at, "", of.Name)
	if !ok {
		return nil, unavailable(gr, "the ClusterCachedResourceEndpointSlice of the provider does not exist")
	}
	if !x.endpoints.Selects(at, s.Partition) {
		return nil, unavailable(gr, "the Partition of the provider does not select this shard")
	}
	name := exports.Name{Cluster: at, Name: s.Cached}
	r, in, err := x.cached(name)
	switch {
	case err != nil:
		return nil, unavailable(gr, err.Error())
	case r.GroupResource != gr || r.Identity != of.Identity:
		return nil, unavailable(gr, "the ClusterCachedResource of the provider is of another resource, or has another identity than the APIExport says")
	}
	if why := unlike(in.Content, f.Content); why != "" {
		return nil, unavailable(gr, why)
	}
	o := x.origin(name, r, in)
	o.Covers = x.readers.covers(func() int64 { return max(x.publishedSince(of.export), x.slicedSince(at, s.Own)) })
	x.readers.follow(o, func() bool {
		return x.refers(of) && x.slices(at, s)
	}, exports.Resource().Key(at, "", of.export.Name), x.SliceResource.Key(at, "", of.Name))
	return o, nil
}

// refers reports whether the objects of a resource of an export are still elsewhere.
func (x *Storage) refers(of *elsewhere) bool {
	e, ok := x.exports.Get(of.export.Cluster, "", of.export.Name)
	if !ok || e.Deleting || e.Identity != of.identity {
		return false
	}
	now := e.Virtual(of.resource)
	return now != nil && *now == *of.Virtual
}

// slices reports whether an endpoint slice of a cluster still is like s.
func (x *Storage) slices(c cluster.Name, s *endpoints.Slice) bool {
	now, ok := x.Slices.Get(c, "", s.Own)
	return ok && now.Like(s)
}

// publishedSince returns the revision at which an export got its virtual resources, at the latest.
func (x *Storage) publishedSince(name exports.Name) int64 {
	if e, ok := x.exports.Get(name.Cluster, "", name.Name); ok {
		return e.Since
	}
	return 0
}

// slicedSince returns the revision at which an endpoint slice got its values, at the latest.
func (x *Storage) slicedSince(c cluster.Name, slice string) int64 {
	if s, ok := x.Slices.Get(c, "", slice); ok {
		return s.Since
	}
	return 0
}

// unlike says why objects cannot be served as another definition describes them, "" if they can.
func unlike(stored, served *catalog.Content) string {
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
func (x *Storage) cached(name exports.Name) (*Cached, catalog.Found, error) {
	r, ok := x.Cached.Get(name.Cluster, "", name.Name)
	if !ok || r.Deleting {
		return nil, catalog.Found{}, errors.New("the ClusterCachedResource of the provider does not exist")
	}
	in, err := x.source(name.Cluster, r.GroupResource, r.Version)
	if err != nil {
		return nil, in, errors.New("the provider has no such resource that can be cached")
	}
	return r, in, nil
}

// origin returns the origin of the objects of a ClusterCachedResource. Call [readers.covers] and
// [readers.follow] for it.
func (x *Storage) origin(name exports.Name, r *Cached, in catalog.Found) *serve.Origin {
	return &serve.Origin{Cluster: name.Cluster, Found: in, Part: r.Part, Scope: func() (registry.Scope, func()) {
		set, done := x.readers.members.Use(name)
		return registry.Scope{Set: set, Sparse: true}, done
	}}
}

// CachedThrough returns the objects of the ClusterCachedResource of an endpoint slice, which is in
// [Storage.Slices].
func (x *Storage) CachedThrough(c cluster.Name, s *endpoints.Slice) (*serve.Origin, error) {
	name := exports.Name{Cluster: c, Name: s.Cached}
	r, in, err := x.cached(name)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	o := x.origin(name, r, in)
	o.Covers = x.readers.covers(func() int64 { return x.slicedSince(c, s.Own) })
	x.readers.follow(o, func() bool { return x.slices(c, s) }, x.SliceResource.Key(c, "", s.Own))
	return o, nil
}
