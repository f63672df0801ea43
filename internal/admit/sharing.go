package admit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// Sharing validates the kinds with which APIs are shared.
type Sharing struct {
	// Check returns what is wrong with a definition.
	Check func(context.Context, *apiextensionsv1.CustomResourceDefinition) field.ErrorList
	// Usage returns how many APIResourceSchemas a cluster has, and their size in bytes.
	Usage func(cluster.Name) (objects, bytes int64)
	// ConversionUsage is Usage for APIConversions.
	ConversionUsage func(cluster.Name) (objects, bytes int64)
	// RolloutUsage is Usage for APIExportRollouts.
	RolloutUsage func(cluster.Name) (objects, bytes int64)
	// Extra returns what is wrong with those annotations of an export that its bindings get.
	Extra func(annotations map[string]string) error
	// Offered says why an export cannot have a native resource, nil if it can.
	Offered func(schema.GroupResource) error
	// Schema returns an APIResourceSchema, nil if there is none.
	Schema func(ctx context.Context, c cluster.Name, name string) (*apisv1alpha1.APIResourceSchema, error)
	// PathOf returns the canonical path of a cluster.
	PathOf func(cluster.Name) cluster.Path
	// RootBinding reports whether a binding of the root workspace is to a built-in export.
	RootBinding func(name string) bool
	// MayBind reports whether a user may bind the export that a reference in a cluster means.
	// It is false if there is none.
	MayBind func(ctx context.Context, u user.Info, c cluster.Name, ref apisv1alpha2.ExportReference) (bool, error)
	// MayDo decides which claims a user may accept.
	MayDo MayDo
	// Locate returns the cluster at a path.
	Locate func(ctx context.Context, path string) (cluster.Name, bool)
	// Cached returns the name of the ClusterCachedResource of another name for a resource, "" if
	// there is none.
	Cached func(c cluster.Name, name string, gvr schema.GroupVersionResource) string
	// BuiltIn reports whether every cluster has a resource without an APIBinding or definition.
	BuiltIn func(schema.GroupResource) bool
}

// Rules returns the rules, one for each kind.
func (s Sharing) Rules() []Rule {
	return []Rule{
		{Name: "apis.kcp.io/BuiltIn", Validate: s.builtIn},
		{Name: "tenancy.kcp.io/APIResourceSchema", Validate: s.schema},
		{Name: "apis.kcp.io/APIConversion", Validate: s.conversion},
		{Name: "apis.kcp.io/APIExportRollout", Validate: s.rollout},
		{Name: "apis.kcp.io/APIExport", Mutate: s.path(sharingResource("apiexports")), Validate: s.export},
		{Name: "apis.kcp.io/APIBinding", Mutate: s.keeping(sharingResource("apibindings")), Validate: s.binding},
		{Name: "apis.kcp.io/APIExportEndpointSlice", Validate: s.slice},
		{Name: "apis.kcp.io/ClusterCachedResource", Mutate: s.path(cachedResources()), Validate: s.cached},
		{Name: "cache.kcp.io/ClusterCachedResourceEndpointSlice", Validate: s.cachedSlice},
		{Name: "topology.kcp.io/Partition", Validate: partitions},
	}
}

func sharingResource(plural string) schema.GroupResource {
	return schema.GroupResource{Group: apisv1alpha2.GroupVersion.Group, Resource: plural}
}

// path sets the path of the cluster on objects of a resource.
func (s Sharing) path(of schema.GroupResource) func(context.Context, Request) error {
	return func(_ context.Context, r Request) error {
		o := r.Object()
		if o == nil || !r.Is(of) || r.GetSubresource() != "" {
			return nil
		}
		annotations := maps.Clone(o.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[core.PathAnnotation] = string(s.PathOf(r.Cluster))
		o.SetAnnotations(annotations)
		return nil
	}
}

// keeping is path for APIBindings, whose finalizer only the system removes: their objects would have
// no owner without it.
func (s Sharing) keeping(of schema.GroupResource) func(context.Context, Request) error {
	set := s.path(of)
	return func(ctx context.Context, r Request) error {
		if r.Is(of) && r.GetOperation() == admission.Update && !r.Privileged() {
			keepFinalizer(r, apisv1alpha2.BindingFinalizer)
		}
		return set(ctx, r)
	}
}

// wrote returns the new object of a request for a resource, nil if the rule has nothing to
// check. Only the system writes the status.
func wrote[T any](r Request, plural string) (*T, error) {
	return wroteOf[T](r, sharingResource(plural))
}

// wroteOf is wrote for a resource of any group.
func wroteOf[T any](r Request, gr schema.GroupResource) (*T, error) {
	if !r.Is(gr) || r.GetOperation() != admission.Create && r.GetOperation() != admission.Update {
		return nil, nil
	}
	if r.GetSubresource() == "status" && !r.Privileged() {
		return nil, r.Forbid(errors.New("the status is kept by the system"))
	}
	if r.GetSubresource() != "" {
		return nil, nil
	}
	return typed[T](r)
}

// typed returns the new object of a request.
func typed[T any](r Request) (*T, error) {
	o, err := values.Typed[T](r.GetObject())
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s %q cannot be decoded: it is malformed: %v", r.GetKind().Kind, r.GetName(), err))
	}
	return o, nil
}

// invalid refuses the object of a request because of mistakes in it, nil for none. Rules return it
// before they check rights: users who lack a right can correct a mistake, and a mistake is no matter of
// rights.
func (r Request) invalid(errs ...*field.Error) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(r.GetKind().GroupKind(), r.GetName(), errs)
}

// unnamed returns the mistake of a reference without a name. The schema requires the name, and accepts an empty
// one.
func unnamed(at *field.Path, name, kind string) field.ErrorList {
	if name != "" {
		return nil
	}
	return field.ErrorList{field.Required(at.Child("name"), "set it to the name of the "+kind)}
}

// convertible refuses an object in v1alpha1 of which a part would be lost in v1alpha2.
func convertible[T any, P interface {
	*T
	Convertible() error
}](r Request) (P, error) {
	if r.GetKind().Version != apisv1alpha1.GroupVersion.Version {
		return nil, nil
	}
	o, err := typed[T](r)
	if err != nil {
		return nil, err
	}
	if err := P(o).Convertible(); err != nil {
		return nil, r.Forbid(err)
	}
	return o, nil
}

func (s Sharing) schema(ctx context.Context, r Request) error {
	n, err := wrote[apisv1alpha1.APIResourceSchema](r, "apiresourceschemas")
	if err != nil || n == nil {
		return err
	}
	kind := schema.GroupKind{Group: apisv1alpha1.GroupVersion.Group, Kind: "APIResourceSchema"}
	invalid := func(errs ...*field.Error) error { return apierrors.NewInvalid(kind, n.Name, errs) }
	if old, ok := r.GetOldObject().(*unstructured.Unstructured); ok && r.GetOperation() == admission.Update {
		now, _ := r.GetObject().(*unstructured.Unstructured)
		if !reflect.DeepEqual(old.Object["spec"], now.Object["spec"]) {
			return invalid(field.Forbidden(field.NewPath("spec"), "an APIResourceSchema never changes; create another one, and name it in the APIExport"))
		}
		return nil
	}
	if objects, bytes := s.Usage(r.Cluster); objects >= maxDefinitions || bytes >= maxDefinitionBytes {
		return r.Forbid(fmt.Errorf("a workspace has at most %d APIResourceSchemas of 64 MiB together; delete some, or use another workspace", maxDefinitions))
	}
	if gr := (schema.GroupResource{Group: n.Spec.Group, Resource: n.Spec.Names.Plural}); tenancy.IsKind(gr) {
		return r.Forbid(fmt.Errorf("%s is a kind of the server; choose another group", gr))
	}
	if isReserved(n.Spec.Group) {
		return r.Forbid(fmt.Errorf("%s is a reserved group; choose another", n.Spec.Group))
	}
	switch group := field.NewPath("spec", "group"); {
	case len(n.Spec.Versions) == 0 && n.Spec.Names.Plural == "":
		return invalid(field.Required(field.NewPath("spec"), "set it to the group, names, scope and versions of the resource"))
	case n.Spec.Group == coreGroup:
		return invalid(field.Invalid(group, n.Spec.Group, coreGroupHint))
	}
	name, err := apisv1alpha1.ParseSchemaName(n.Name)
	if err != nil {
		return invalid(field.Invalid(field.NewPath("metadata", "name"), n.Name, err.Error()))
	}
	if name.Group != n.Spec.Group || name.Resource != n.Spec.Names.Plural {
		return invalid(field.Invalid(field.NewPath("metadata", "name"), n.Name, "must be "+apisv1alpha1.SchemaName{
			Prefix: name.Prefix, GroupResource: schema.GroupResource{Group: n.Spec.Group, Resource: n.Spec.Names.Plural},
		}.String()))
	}
	crd, err := n.CustomResourceDefinition()
	if err != nil {
		return invalid(field.Invalid(field.NewPath("spec", "versions"), "", err.Error()))
	}
	if n.Spec.NameValidation == apisv1alpha1.NameIsPathSegment && slices.ContainsFunc(n.Spec.Versions, func(v apisv1alpha1.APIResourceVersion) bool { return v.Served && !v.Storage }) {
		return invalid(field.Forbidden(field.NewPath("spec", "nameValidation"), fmt.Sprintf("%s needs a schema that serves only the version in which objects are stored: set served to false in the others, or use %s",
			apisv1alpha1.NameIsPathSegment, apisv1alpha1.NameIsSubdomain)))
	}
	if errs := s.Check(ctx, crd); len(errs) > 0 {
		return invalid(ofSchema(errs)...)
	}
	return nil
}

func (s Sharing) export(_ context.Context, r Request) error {
	e, err := wrote[apisv1alpha2.APIExport](r, "apiexports")
	if err != nil || e == nil {
		return err
	}
	old, err := convertible[apisv1alpha1.APIExport](r)
	if err != nil {
		return err
	}
	if old != nil {
		e = old.ToV1alpha2()
	}
	for i, x := range e.Spec.Resources {
		if x.Storage.Native != nil {
			if err := s.Offered(schema.GroupResource{Group: x.Group, Resource: x.Name}); err != nil && !kept(r, x) {
				return r.Forbid(fmt.Errorf("spec.resources[%d].storage.native: %w", i, err))
			}
			continue
		}
		if x.Group == coreGroup {
			return r.Forbid(fmt.Errorf("spec.resources[%d].group: %s", i, coreGroupHint))
		}
		name, err := apisv1alpha1.ParseSchemaName(x.Schema)
		if err != nil || name.Resource != x.Name || name.Group != x.Group {
			return r.Forbid(fmt.Errorf("spec.resources[%d].schema must end in .%s", i, apisv1alpha1.SchemaName{
				GroupResource: schema.GroupResource{Group: x.Group, Resource: x.Name},
			}.DefinitionName()))
		}
		if v := x.Storage.Virtual; v != nil {
			if err := s.reference(v.Reference); err != nil {
				return r.Forbid(fmt.Errorf("spec.resources[%d].storage.virtual.reference: %w", i, err))
			}
		}
	}
	if err := s.Extra(e.Annotations); err != nil && e.DeletionTimestamp == nil {
		return r.Forbid(err)
	}
	return s.asks(r, e.Spec.PermissionClaims)
}

// kept reports whether an update keeps a native resource that the export has already: the server may
// have offered more before.
func kept(r Request, x apisv1alpha2.ResourceSchema) bool {
	if r.GetOldObject() == nil {
		return false
	}
	old, err := values.Typed[apisv1alpha2.APIExport](r.GetOldObject())
	return err == nil && slices.ContainsFunc(old.Spec.Resources, func(o apisv1alpha2.ResourceSchema) bool {
		return o.Group == x.Group && o.Name == x.Name && o.Storage.Native != nil
	})
}

func (s Sharing) binding(ctx context.Context, r Request) error {
	b, err := wrote[apisv1alpha2.APIBinding](r, "apibindings")
	if err != nil || b == nil {
		return err
	}
	old, err := convertible[apisv1alpha1.APIBinding](r)
	if err != nil {
		return err
	}
	if old != nil {
		b = old.ToV1alpha2()
		warnOfSelectors(ctx, old.Spec.PermissionClaims)
	}
	at := field.NewPath("spec", "reference", "export")
	if b.Spec.Reference.Export == nil {
		return r.invalid(field.Required(at, "set export.name to the name of the APIExport, and export.path to the path of its workspace"))
	}
	if err := r.invalid(unnamed(at, b.Spec.Reference.Export.Name, "APIExport")...); err != nil {
		return err
	}
	if err := s.answers(ctx, r, b.Spec.PermissionClaims); err != nil {
		return err
	}
	if r.GetOperation() != admission.Create {
		return nil // the schema refuses another reference
	}
	ref := *b.Spec.Reference.Export
	return s.mayBind(ctx, r, ref, fmt.Sprintf("unable to create APIBinding: no permission to bind to export %s", ref))
}

// warnOfSelectors warns about accepted claims in v1alpha1 that name objects: as in the existing kcp, they
// accept access to all objects.
func warnOfSelectors(ctx context.Context, claims []apisv1alpha1.AcceptablePermissionClaim) {
	for i, c := range claims {
		if c.State == apisv1alpha2.ClaimAccepted && len(c.ResourceSelector) > 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("spec.permissionClaims[%d].resourceSelector has no effect: the provider has access to all %s in this workspace; to limit it, use %s with a selector of labels",
				i, schema.GroupResource{Group: c.Group, Resource: c.Resource}, apisv1alpha2.GroupVersion))
		}
	}
}

func (s Sharing) slice(ctx context.Context, r Request) error {
	n, err := wrote[apisv1alpha1.APIExportEndpointSlice](r, "apiexportendpointslices")
	if err != nil || n == nil {
		return err
	}
	if r.GetOperation() != admission.Create {
		return nil
	}
	ref := n.Spec.APIExport
	if err := r.invalid(unnamed(field.NewPath("spec", "export"), ref.Name, "APIExport")...); err != nil {
		return err
	}
	return s.mayBind(ctx, r, ref, fmt.Sprintf("unable to create APIExportEndpointSlice: no permission to bind to export %s", ref))
}

// mayBind refuses a request of a user who may not bind an export. The error is the same if
// there is no export, or no such path.
func (s Sharing) mayBind(ctx context.Context, r Request, ref apisv1alpha2.ExportReference, why string) error {
	if r.Privileged() {
		return nil
	}
	ok, err := s.MayBind(ctx, r.GetUserInfo(), r.Cluster, ref)
	switch {
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("cannot decide whether the export may be bound: %w", err))
	case !ok:
		return r.Forbid(errors.New(why))
	}
	return nil
}
