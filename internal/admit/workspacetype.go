package admit

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy"
)

var workspaceTypes = schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspacetypes"}

// WorkspaceTypes says what types there are and who may use them.
type WorkspaceTypes struct {
	// CatchUp waits until the others know of everything that was written by now.
	CatchUp func(context.Context) error
	// Known returns the types of all clusters.
	Known func() *tenancy.Types
	// PathOf returns the canonical path of a cluster, and Root what else is known of it.
	PathOf func(cluster.Name) cluster.Path
	Root   func(cluster.Name) tenancy.Root
	// MayUse reports whether a user may make workspaces of a type.
	MayUse func(context.Context, user.Info, tenancy.Type) (bool, error)
}

// fill sets the type of a new Workspace, unless it is served elsewhere, to what it
// means, and the labels that its type gives it.
func (w WorkspaceTypes) fill(ctx context.Context, r Request, u *unstructured.Unstructured) error {
	ref, err := typeOf(u)
	if err != nil {
		return nil //nolint:nilerr // it is refused when it is compared with the schema
	}
	if _, mounted, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "mount"); mounted && ref == nil {
		return nil
	}
	if ref == nil {
		parent, err := w.parent(ctx, r)
		if err != nil {
			return err
		}
		child := tenancy.DefaultChild(parent)
		ref = &child
	}
	tmpl, err := w.Known().Template(ctx, r.Cluster, *ref)
	if err != nil {
		return r.Forbid(err)
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

// keepType puts the type back, or its path, that an update leaves out, as a manifest does
// that does not say what the server has filled in.
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

// typeOf returns the type that a Workspace asks for, nil if it asks for none.
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
	if ref.Name == "" {
		return nil, errors.New("a type without a name")
	}
	return ref, nil
}

// parent returns the template of the workspace that a request is made in.
func (w WorkspaceTypes) parent(ctx context.Context, r Request) (*tenancy.Template, error) {
	parent, err := w.Known().Of(ctx, r.Cluster)
	if err != nil {
		return nil, r.Forbid(fmt.Errorf("the type of the workspace above decides what may be in it: %w; create it again", err))
	}
	return parent, nil
}

// validateUse refuses a new Workspace whose type may not be where it is to be, or not be
// used by whoever makes it.
func (w WorkspaceTypes) validateUse(ctx context.Context, r Request, u *unstructured.Unstructured) error {
	ref, err := typeOf(u)
	if err != nil || ref == nil {
		return nil //nolint:nilerr // as in fill
	}
	tmpl, err := w.Known().Template(ctx, r.Cluster, *ref)
	if err != nil {
		return r.Forbid(err)
	}
	for i, a := range tmpl.Aliases {
		ok, err := w.MayUse(ctx, r.GetUserInfo(), a)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("may the type %s be used: %w", tmpl.Names[i], err))
		}
		if !ok {
			return r.Forbid(fmt.Errorf("unable to use workspace type %q: missing verb='use' permission on it", tmpl.Names[i]))
		}
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

// inheritGroups has a new Workspace require of users the groups that the workspace above
// requires.
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

// Rule keeps WorkspaceTypes such that workspaces can be made of them, and what the
// server says in them true.
func (w WorkspaceTypes) Rule() Rule {
	return Rule{
		Name: "tenancy.kcp.io/WorkspaceType",
		Mutate: func(_ context.Context, r Request) error {
			o := r.Object()
			if o == nil || !r.Is(workspaceTypes) || r.GetSubresource() != "" {
				return nil
			}
			annotations := maps.Clone(o.GetAnnotations())
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[core.PathAnnotation] = string(w.PathOf(r.Cluster))
			o.SetAnnotations(annotations)
			return nil
		},
		Validate: func(_ context.Context, r Request) error {
			if !r.Is(workspaceTypes) || r.GetOperation() != admission.Create && r.GetOperation() != admission.Update {
				return nil
			}
			if r.GetSubresource() == "status" {
				if r.Privileged() {
					return nil
				}
				return r.Forbid(errors.New("the status of a workspace type is kept by the system"))
			}
			u, ok := r.GetObject().(*unstructured.Unstructured)
			if !ok {
				return nil
			}
			var t tenancyapi.WorkspaceType
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &t); err != nil {
				return r.Forbid(fmt.Errorf("it is no workspace type: %w", err))
			}
			return validateType(r, t.Spec)
		},
	}
}

func validateType(r Request, spec tenancyapi.WorkspaceTypeSpec) error {
	if r.GetName() == "root" && r.Cluster != cluster.Root {
		return r.Forbid(errors.New("the workspace type root can only be in the root workspace; choose another name"))
	}
	if (spec.Initializer || spec.Terminator) && len(r.Object().GetName()) == 1 { // which may have been made up for it
		// As the end of an initializer's name it is outside of what these may be called, so
		// that none of the others could be removed from a status that has it.
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
	if err := validateLabels(r, spec.AdditionalWorkspaceLabels); err != nil {
		return err
	}
	for _, rejected := range []struct {
		set       bool
		name, why string
	}{
		{len(spec.DefaultAPIBindings) > 0, "defaultAPIBindings", "APIs cannot be shared between workspaces yet"},
	} {
		if rejected.set {
			return r.Forbid(fmt.Errorf("spec.%s must be unset: %s", rejected.name, rejected.why))
		}
	}
	return nil
}

// validateLabels refuses labels that no Workspace could have, or that are not for a type
// to give.
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
