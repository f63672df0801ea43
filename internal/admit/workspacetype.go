package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/issuers"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

var workspaceTypes = schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspacetypes"}

// WorkspaceTypes looks up workspace types and the permission to use them.
type WorkspaceTypes struct {
	// CatchUp waits until the tables in memory include all writes committed by now.
	CatchUp func(context.Context) error
	// Known returns the types of all clusters.
	Known func() *tree.Types
	// PathOf returns the canonical path of a cluster, and Root its row in the tree.
	PathOf func(cluster.Name) cluster.Path
	Root   func(cluster.Name) tree.Root
	// MayBind reports whether a user may bind the export that a reference in a cluster means.
	MayBind func(context.Context, user.Info, cluster.Name, apisv1alpha2.ExportReference) (bool, error)
	// Locate returns the cluster of the export that a reference in a cluster means, and whether
	// there is one.
	Locate func(context.Context, cluster.Name, apisv1alpha2.ExportReference) (cluster.Name, bool)
	// MayUse reports whether a user may create workspaces of a type.
	MayUse func(context.Context, user.Info, tree.Type) (bool, error)
}

// fill resolves the type of a new Workspace, or its default, and adds the labels of the
// type. Mounted workspaces have no type.
func (w WorkspaceTypes) fill(ctx context.Context, r Request, u *unstructured.Unstructured) error {
	ref, err := typeOf(u)
	if err != nil {
		return nil //nolint:nilerr // it is refused when it is compared with the schema
	}
	if ref == nil {
		unstructured.RemoveNestedField(u.Object, "spec", "type")
	}
	if _, mounted, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "mount"); mounted && ref == nil {
		return nil
	}
	if ref == nil {
		parent, err := w.parent(ctx, r)
		if err != nil {
			return err
		}
		child := tree.DefaultChild(parent)
		ref = &child
	}
	tmpl, err := w.usable(ctx, r, *ref)
	if err != nil {
		return err
	}
	path := ref.Path
	if path == "" {
		path = string(tmpl.Path)
	}
	if err := unstructured.SetNestedMap(u.Object, map[string]any{"name": ref.Name, "path": path}, "spec", "type"); err != nil {
		return nil //nolint:nilerr // as above
	}
	if more := tmpl.Spec.AdditionalWorkspaceLabels; len(more) > 0 {
		labels := maps.Clone(more)
		maps.Copy(labels, u.GetLabels())
		u.SetLabels(labels)
	}
	return nil
}

// keepType restores the type, or its path, that an update omits. Manifests lack defaults
// set by the server.
func keepType(r Request, u *unstructured.Unstructured) {
	old, ok := r.GetOldObject().(*unstructured.Unstructured)
	if !ok || r.GetSubresource() != "" {
		return
	}
	before, err := typeOf(old)
	now, err2 := typeOf(u)
	if err != nil || err2 != nil || before == nil || now != nil && (now.Name != before.Name || now.Path != "" || before.Path == "") {
		return
	}
	kept := map[string]any{"name": before.Name}
	if before.Path != "" {
		kept["path"] = before.Path
	}
	_ = unstructured.SetNestedMap(u.Object, kept, "spec", "type") // spec is an object: its type was read
}

// The patterns of spec.type.name and spec.type.path in the schema of Workspaces. A type that does not
// match them is refused for that, not because the user may not use it.
var (
	typeNamePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}`)
	pathPattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// typeOf returns the type in the spec of a Workspace, nil if there is none. An empty type is none:
// typed clients of the existing kcp send one. It returns an error if the schema refuses the type.
func typeOf(u *unstructured.Unstructured) (*tenancyapi.WorkspaceTypeReference, error) {
	if _, found, err := unstructured.NestedMap(u.Object, "spec"); err != nil {
		return nil, err
	} else if !found {
		return nil, nil
	}
	fields, found, err := unstructured.NestedMap(u.Object, "spec", "type")
	if err != nil || !found {
		return nil, err
	}
	ref := &tenancyapi.WorkspaceTypeReference{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, ref); err != nil {
		return nil, err
	}
	if *ref == (tenancyapi.WorkspaceTypeReference{}) {
		return nil, nil
	}
	if !typeNamePattern.MatchString(ref.Name) || ref.Path != "" && !pathPattern.MatchString(ref.Path) {
		return nil, errors.New("a malformed reference")
	}
	return ref, nil
}

// parent returns the template of the workspace that contains the new one.
func (w WorkspaceTypes) parent(ctx context.Context, r Request) (*tree.Template, error) {
	parent, err := w.Known().Of(ctx, r.Cluster)
	if err != nil {
		return nil, r.Forbid(fmt.Errorf("the type of the workspace above decides what may be in it: %w; create it again", err))
	}
	return parent, nil
}

// validateUse refuses a new Workspace whose type is not allowed in its parent, or may not
// be used by the user.
func (w WorkspaceTypes) validateUse(ctx context.Context, r Request, u *unstructured.Unstructured) error {
	ref, err := typeOf(u)
	if err != nil || ref == nil {
		return nil //nolint:nilerr // as in fill
	}
	tmpl, err := w.usable(ctx, r, *ref)
	if err != nil {
		return err
	}
	parent, err := w.parent(ctx, r)
	if err != nil {
		return err
	}
	if err := w.Known().Allowed(tmpl, parent); err != nil {
		return r.Forbid(err)
	}
	return nil
}

// usable returns the template of a type, if the user may use the type and all that it
// extends. Missing types and forbidden ones give the same error. It repeats references as
// written, and so discloses nothing about workspaces that the user may not enter.
func (w WorkspaceTypes) usable(ctx context.Context, r Request, ref tenancyapi.WorkspaceTypeReference) (*tree.Template, error) {
	reached, tmpl, err := w.Known().Reach(ctx, r.Cluster, ref)
	for _, t := range reached {
		switch ok, err := w.MayUse(ctx, r.GetUserInfo(), t.Type); {
		case err != nil:
			return nil, fmt.Errorf("cannot decide whether workspace type %s may be used: %w", named(t.Ref), err)
		case !ok:
			return nil, r.Forbid(unusable(ref, t.Ref))
		}
	}
	if err == nil {
		return tmpl, nil
	}
	var missing *tree.UnresolvedError
	if !errors.As(err, &missing) {
		return nil, r.Forbid(err)
	}
	if missing.At != "" {
		wanted := tree.Type{Cluster: missing.At, Name: missing.Ref.Name}
		if ok, uerr := w.MayUse(ctx, r.GetUserInfo(), wanted); ok && uerr == nil {
			return nil, r.Forbid(err)
		}
	}
	return nil, r.Forbid(unusable(ref, missing.Ref))
}

// named returns a reference as it was written.
func named(ref tenancyapi.WorkspaceTypeReference) string {
	if ref.Path == "" {
		return ref.Name
	}
	return ref.Path + ":" + ref.Name
}

// unusable is the error for a type that does not exist or that the user may not use: that
// of a new workspace, or one that it extends.
func unusable(asked, t tenancyapi.WorkspaceTypeReference) error {
	why := fmt.Sprintf("workspace type %q cannot be resolved, or missing verb='use' permission on it", named(t))
	if t.Path == "" {
		why += "; give its path if it is neither in the workspace of the reference, nor above it, nor in root"
	}
	if t != asked {
		why = fmt.Sprintf("workspace type %q extends another: %s", named(asked), why)
	}
	return errors.New(why)
}

// inheritGroups copies the required groups of the parent to a new Workspace.
func (w WorkspaceTypes) inheritGroups(r Request, u *unstructured.Unstructured) error {
	annotations := u.GetAnnotations()
	asked, given := annotations[core.RequiredGroupsAnnotation]
	groups := w.Root(r.Cluster).RequiredGroups
	switch {
	case given && asked != groups && !r.Privileged():
		return r.Forbid(fmt.Errorf("annotation %s can only be set by the system; leave it out", core.RequiredGroupsAnnotation))
	case given || groups == "":
		return nil
	}
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[core.RequiredGroupsAnnotation] = groups
	u.SetAnnotations(annotations)
	return nil
}

// keepTenancy lets only administrators of the server change which types have limits of
// their own. Tenants could otherwise raise their limits with a type of their own.
func keepTenancy(r Request) error {
	var old, now string
	if o := r.Old(); o != nil {
		old = o.GetAnnotations()[tenancyapi.TenantAnnotation]
	}
	if o := r.Object(); o != nil {
		now = o.GetAnnotations()[tenancyapi.TenantAnnotation]
	}
	if old == now || r.Privileged() || r.administrator() {
		return nil
	}
	return r.Forbid(fmt.Errorf("annotation %s can only be changed by administrators of the server, who are in the group %s", tenancyapi.TenantAnnotation, auth.AdminGroup))
}

// administrator reports whether the request comes from an administrator of the server.
func (r Request) administrator() bool {
	u := r.GetUserInfo()
	return u != nil && slices.Contains(u.GetGroups(), auth.AdminGroup)
}

// Rule validates WorkspaceTypes, and sets their path.
func (w WorkspaceTypes) Rule() Rule {
	return Rule{
		Name: "tenancy.kcp.io/WorkspaceType",
		Mutate: func(ctx context.Context, r Request) error {
			o := r.Object()
			if o == nil || !r.Is(workspaceTypes) || r.GetSubresource() != "" {
				return nil
			}
			annotations := maps.Clone(o.GetAnnotations())
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[core.PathAnnotation] = string(w.PathOf(r.Cluster))
			if !r.Privileged() {
				w.locate(ctx, r, annotations)
			}
			o.SetAnnotations(annotations)
			return nil
		},
		Validate: func(ctx context.Context, r Request) error {
			if !r.Is(workspaceTypes) {
				return nil
			}
			switch r.GetOperation() {
			case admission.Delete:
				return validateTypeDeletion(r)
			case admission.Create, admission.Update:
			default:
				return nil
			}
			if r.GetSubresource() == "status" {
				if r.Privileged() {
					return nil
				}
				return r.Forbid(errors.New("the status of a workspace type is kept by the system"))
			}
			if err := keepTenancy(r); err != nil {
				return err
			}
			u, ok := r.GetObject().(*unstructured.Unstructured)
			if !ok {
				return nil
			}
			var t tenancyapi.WorkspaceType
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &t); err != nil {
				return r.Forbid(fmt.Errorf("it is no workspace type: %w", err))
			}
			if err := validateType(r, t.Spec); err != nil {
				return err
			}
			if err := validatePermissions(r, t.Spec); err != nil {
				return err
			}
			return w.validateBindings(ctx, r, t.Spec)
		},
	}
}

// validateTypeDeletion refuses the deletion of the types that the server needs, even for
// system:masters: no workspace could be created afterwards.
func validateTypeDeletion(r Request) error {
	o := r.Old() // the name of a request for a whole collection is empty
	if o == nil || r.Cluster != cluster.Root || !slices.Contains(tenancy.NeededTypes(), o.GetName()) {
		return nil
	}
	return r.Forbid(fmt.Errorf("the workspace type %s may not be deleted: the server needs it to create workspaces; change it instead", o.GetName()))
}

func validateType(r Request, spec tenancyapi.WorkspaceTypeSpec) error {
	if r.GetName() == "root" && r.Cluster != cluster.Root {
		return r.Forbid(errors.New("the workspace type root can only be in the root workspace; choose another name"))
	}
	if r.GetOperation() == admission.Create && !typeNamePattern.MatchString(r.Object().GetName()) {
		// The schema accepts such names. Types that have one already may still change.
		return r.invalid(field.Invalid(field.NewPath("metadata", "name"), r.Object().GetName(),
			"must begin with a letter from a to z: Workspaces and other types cannot refer to it otherwise; choose another name"))
	}
	// The object has a generated name, too; the name of the request is empty then.
	if (spec.Initializer || spec.Terminator) && len(r.Object().GetName()) == 1 {
		// The name of an initializer or terminator ends with that of its type. The schema of
		// LogicalClusters requires two characters there. A status with a shorter one would be
		// invalid, so no initializer or terminator could be removed from it.
		return r.Forbid(errors.New("the name of a workspace type with an initializer or terminator has at least 2 characters; choose a longer one"))
	}
	limits := map[string]*tenancyapi.WorkspaceTypeSelector{"limitAllowedChildren": spec.LimitAllowedChildren, "limitAllowedParents": spec.LimitAllowedParents}
	for _, name := range []string{"limitAllowedChildren", "limitAllowedParents"} {
		if limits[name] == nil {
			continue
		}
		for i, ref := range limits[name].Types {
			if ref.Path == "" {
				return r.Forbid(fmt.Errorf("spec.%s.types[%d].path must be set", name, i))
			}
		}
	}
	if child := spec.DefaultChildWorkspaceType; child != nil && child.Path == "" {
		return r.Forbid(errors.New("spec.defaultChildWorkspaceType.path must be set"))
	}
	if n := len(spec.AuthenticationConfigurations); n > issuers.MaxProviders {
		return r.Forbid(fmt.Errorf("spec.authenticationConfigurations has %d elements, and the limit is %d", n, issuers.MaxProviders))
	}
	if err := validateLabels(r, spec.AdditionalWorkspaceLabels); err != nil {
		return err
	}
	return nil
}

// validateBindings refuses default bindings to exports that the user may not bind. Those that
// the type already has stay: other users than the one who added them may change the rest of it.
func (w WorkspaceTypes) validateBindings(ctx context.Context, r Request, spec tenancyapi.WorkspaceTypeSpec) error {
	if n := len(spec.DefaultAPIBindings); n > tenancy.MaxDefaultBindings {
		return r.Forbid(fmt.Errorf("spec.defaultAPIBindings has %d elements, and the limit is %d", n, tenancy.MaxDefaultBindings))
	}
	at := field.NewPath("spec", "defaultAPIBindings")
	for i, ref := range spec.DefaultAPIBindings {
		if ref.Export == "" {
			return r.invalid(field.Required(at.Index(i).Child("export"), "set it to the name of the APIExport"))
		}
	}
	if r.Privileged() {
		return nil
	}
	old := typeIn(r.GetOldObject())
	before, now := tree.CheckedExportsOf(old.Annotations), tree.CheckedExportsOf(r.Object().GetAnnotations())
	for _, ref := range spec.DefaultAPIBindings {
		key := tree.CheckedExport(ref)
		if slices.Contains(old.Spec.DefaultAPIBindings, ref) {
			if before[key] != now[key] { // by a webhook
				return r.Forbid(fmt.Errorf("the annotation %s is kept by the system", tenancyapi.CheckedExportsAnnotation))
			}
			continue
		}
		// The check is of the cluster that is stored, whatever its path means later.
		ok, err := w.MayBind(ctx, r.GetUserInfo(), r.Cluster, apisv1alpha2.ExportReference{Path: string(now[key]), Name: ref.Export})
		ok = ok && (ref.Path == "") == (now[key] == "")
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("cannot decide whether the export may be bound: %w", err))
		}
		if !ok {
			path := ref.Path
			if path == "" {
				path = string(w.PathOf(r.Cluster))
			}
			return r.Forbid(fmt.Errorf("spec.defaultAPIBindings: no permission to bind to export %s:%s", path, ref.Export))
		}
	}
	return nil
}

// locate sets an annotation: for each default binding of a type, the cluster of its export. A binding
// that the type had before keeps its cluster.
func (w WorkspaceTypes) locate(ctx context.Context, r Request, annotations map[string]string) {
	old := typeIn(r.GetOldObject())
	before, now := tree.CheckedExportsOf(old.Annotations), tree.CheckedExports{}
	for _, ref := range typeIn(r.GetObject()).Spec.DefaultAPIBindings {
		if ref.Path == "" {
			continue // the export is always in the cluster of the type
		}
		key := tree.CheckedExport(ref)
		at, ok := before[key]
		if !slices.Contains(old.Spec.DefaultAPIBindings, ref) {
			at, ok = w.Locate(ctx, r.Cluster, apisv1alpha2.ExportReference{Path: ref.Path, Name: ref.Export})
		}
		if ok {
			now[key] = at
		}
	}
	delete(annotations, tenancyapi.CheckedExportsAnnotation)
	if len(now) > 0 {
		text, _ := json.Marshal(now) // strings always encode
		annotations[tenancyapi.CheckedExportsAnnotation] = string(text)
	}
}

// typeIn returns the type in an object of a request. It is empty if the object is missing or broken,
// so all that another one has is new.
func typeIn(o runtime.Object) (t tenancyapi.WorkspaceType) {
	if u, ok := o.(*unstructured.Unstructured); ok && u != nil {
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &t) != nil {
			return tenancyapi.WorkspaceType{}
		}
	}
	return t
}

// validateLabels refuses labels that are invalid, or that a type may not set.
func validateLabels(r Request, labels map[string]string) error {
	at := field.NewPath("spec", "additionalWorkspaceLabels")
	if errs := metav1validation.ValidateLabels(labels, at); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: workspaceTypes.Group, Kind: "WorkspaceType"}, r.GetName(), errs)
	}
	if _, ok := labels[core.PhaseLabel]; ok {
		return r.Forbid(fmt.Errorf("%s must not have the key %s, which repeats the phase of a workspace", at, core.PhaseLabel))
	}
	return nil
}
