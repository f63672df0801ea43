package admit

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

func cachedResources() schema.GroupResource {
	return schema.GroupResource{Group: cacheapi.GroupVersion.Group, Resource: "clustercachedresources"}
}

// cached validates ClusterCachedResources. Their objects can be read in other workspaces, so a
// user can only choose objects that they may read themself.
func (s Sharing) cached(ctx context.Context, r Request) error {
	n, err := wroteOf[cacheapi.ClusterCachedResource](r, cachedResources())
	if err != nil || n == nil {
		return err
	}
	gr := schema.GroupResource{Group: n.Spec.Group, Resource: n.Spec.Resource}
	if s.BuiltIn(gr) || tenancy.IsKind(gr) || isReserved(gr.Group) || gr.Group == cacheapi.GroupVersion.Group {
		return r.Forbid(fmt.Errorf("%s is a kind of the server; only resources of CustomResourceDefinitions and APIBindings can be cached", gr))
	}
	selector := field.NewPath("spec", "labelSelector")
	invalid := func(e *field.Error) error {
		return apierrors.NewInvalid(cacheapi.GroupVersion.WithKind("ClusterCachedResource").GroupKind(), n.Name, field.ErrorList{e})
	}
	if l := n.Spec.LabelSelector; l != nil {
		if err := selects(apisv1alpha2.PermissionClaimSelector{LabelSelector: *l, MatchAll: len(l.MatchLabels)+len(l.MatchExpressions) == 0}); err != nil {
			return invalid(field.Invalid(selector, l, err.Error()))
		}
	}
	if old := r.GetOldObject(); old != nil {
		before, err := values.Typed[cacheapi.ClusterCachedResource](old)
		if err != nil {
			return r.Forbid(fmt.Errorf("the stored object is malformed: %w", err))
		}
		if before.Spec.Group != n.Spec.Group || before.Spec.Resource != n.Spec.Resource || before.Spec.Version != n.Spec.Version {
			return invalid(field.Forbidden(field.NewPath("spec"), "group, version and resource never change; create another ClusterCachedResource"))
		}
		if metav1.FormatLabelSelector(before.Spec.LabelSelector) == metav1.FormatLabelSelector(n.Spec.LabelSelector) {
			return nil
		}
	}
	if other := s.Cached(r.Cluster, n.Name, gr.WithVersion(n.Spec.Version)); other != "" {
		return r.Forbid(fmt.Errorf("ClusterCachedResource %s is of the same resource and version; change that one", other))
	}
	return s.mayRead(ctx, r, gr)
}

// mayRead refuses a request of a user who may not read all objects of a resource.
func (s Sharing) mayRead(ctx context.Context, r Request, gr schema.GroupResource) error {
	if r.Privileged() {
		return nil
	}
	for _, verb := range []string{"get", "list", "watch"} {
		ok, err := s.MayDo(ctx, r.GetUserInfo(), r.Cluster, verb, gr)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("cannot decide whether the objects may be published: %w", err))
		}
		if !ok {
			return r.Forbid(fmt.Errorf("you can only publish what you may read yourself: you lack the verb %s on %s", verb, gr))
		}
	}
	return nil
}

// cachedSlice validates ClusterCachedResourceEndpointSlices.
func (s Sharing) cachedSlice(ctx context.Context, r Request) error {
	n, err := wroteOf[cacheapi.ClusterCachedResourceEndpointSlice](r, schema.GroupResource{Group: cacheapi.GroupVersion.Group, Resource: "clustercachedresourceendpointslices"})
	if err != nil || n == nil || r.GetOldObject() != nil {
		return err // the schema refuses other references
	}
	ref, spec := n.Spec.APIExport, field.NewPath("spec")
	if err := r.invalid(append(unnamed(spec.Child("clusterCachedResource"), n.Spec.ClusterCachedResource.Name, "ClusterCachedResource"), unnamed(spec.Child("export"), ref.Name, "APIExport")...)...); err != nil {
		return err
	}
	for _, path := range []string{n.Spec.ClusterCachedResource.Path, ref.Path} {
		if at, ok := s.Locate(ctx, path); path != "" && (!ok || at != r.Cluster) {
			return r.Forbid(errors.New("spec.clusterCachedResource.path and spec.export.path must be empty or the path of this workspace: an endpoint slice is in the workspace of its ClusterCachedResource and its APIExport"))
		}
	}
	return s.mayBind(ctx, r, ref, fmt.Sprintf("unable to create ClusterCachedResourceEndpointSlice: no permission to bind to export %s", ref))
}

// reference returns what is wrong with the reference of a virtual storage. Kinds of the server
// have no endpoints of tenants.
func (s Sharing) reference(ref corev1.TypedLocalObjectReference) error {
	switch {
	case ref.APIGroup == nil || *ref.APIGroup == "":
		return errors.New("apiGroup is required: the endpoints are in an object of cache.kcp.io or of a group of your own")
	case *ref.APIGroup == cacheapi.GroupVersion.Group && ref.Kind != "ClusterCachedResourceEndpointSlice":
		return fmt.Errorf("%s has no kind %s with endpoints; use ClusterCachedResourceEndpointSlice", cacheapi.GroupVersion.Group, ref.Kind)
	case *ref.APIGroup != cacheapi.GroupVersion.Group && isReserved(*ref.APIGroup):
		return fmt.Errorf("%s is a group of the server, whose objects have no endpoints that you can set", *ref.APIGroup)
	}
	return nil
}
