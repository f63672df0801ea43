package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

var (
	workspaces      = schema.GroupResource{Group: tenancy.GroupVersion.Group, Resource: "workspaces"}
	logicalClusters = schema.GroupResource{Group: core.GroupVersion.Group, Resource: "logicalclusters"}

	// filled are the fields in the spec of a Workspace that only the system sets.
	filled = []string{"cluster", "URL"}
)

// maxPath is the maximum number of bytes in the path of a workspace that contains others. Each
// workspace stores its path, so that a tree takes memory with the square of its depth.
const maxPath = 4 << 10

// Workspaces sets the type and the owner of a new Workspace, and protects the fields of the
// system.
func Workspaces(types WorkspaceTypes) Rule {
	return Rule{
		Name: "tenancy.kcp.io/Workspace",
		Mutate: func(ctx context.Context, r Request) error {
			u, ok := r.GetObject().(*unstructured.Unstructured)
			if !ok || !r.Is(workspaces) {
				return nil
			}
			if r.GetOperation() == admission.Update {
				keepFinalizer(r, core.LogicalClusterFinalizer)
				keepType(r, u)
				keepFilled(r, u)
				return nil
			}
			if r.GetOperation() != admission.Create || r.GetSubresource() != "" {
				return nil
			}
			// Decide on all earlier writes of types, and of the parent's required groups.
			if err := types.CatchUp(ctx); err != nil {
				return outage.Undecided()
			}
			if err := types.fill(ctx, r, u); err != nil {
				return err
			}
			if err := types.inheritGroups(r, u); err != nil {
				return err
			}
			return setOwner(r, u)
		},
		Validate: func(ctx context.Context, r Request) error {
			if !r.Is(workspaces) {
				return nil
			}
			if u, ok := r.GetObject().(*unstructured.Unstructured); ok && r.GetOperation() == admission.Create {
				if n := len(types.PathOf(r.Cluster)); n > maxPath {
					return r.Forbid(fmt.Errorf("the path of the workspace above has %d bytes, and the limit is %d; create it less deep in the tree", n, maxPath))
				}
				if err := types.validateUse(ctx, r, u); err != nil {
					return err
				}
			}
			if u, ok := r.GetObject().(*unstructured.Unstructured); ok {
				if err := validateLocation(u); err != nil {
					return r.Forbid(err)
				}
			}
			if r.Privileged() {
				return nil
			}
			switch r.GetOperation() {
			case admission.Create:
				return validateNew(r)
			case admission.Update:
				return validateChange(r)
			default:
				return nil
			}
		},
	}
}

// keepFinalizer restores a finalizer that only the system may remove. It gives no error, as
// clients that replace an object with a manifest do not mean to drop the finalizer.
func keepFinalizer(r Request, name string) {
	old, now := r.Old(), r.Object()
	if old == nil || now == nil || !slices.Contains(old.GetFinalizers(), name) || slices.Contains(now.GetFinalizers(), name) {
		return
	}
	now.SetFinalizers(append(slices.Clone(now.GetFinalizers()), name))
}

// keepFilled restores fields of the system that an update omits, as an update with the
// original manifest does. validateChange refuses updates that change them.
func keepFilled(r Request, u *unstructured.Unstructured) {
	old, ok := r.GetOldObject().(*unstructured.Unstructured)
	if !ok || r.Privileged() || r.GetSubresource() != "" {
		return
	}
	for _, field := range filled {
		before, _, _ := unstructured.NestedString(old.Object, "spec", field)
		if _, found, err := unstructured.NestedFieldNoCopy(u.Object, "spec", field); before != "" && !found && err == nil {
			_ = unstructured.SetNestedField(u.Object, before, "spec", field) // spec is an object, or missing
		}
	}
	u.SetAnnotations(madeGood(old.GetAnnotations(), u.GetAnnotations(), tenancy.OwnerAnnotation, core.RequiredGroupsAnnotation))
	u.SetLabels(madeGood(old.GetLabels(), u.GetLabels(), core.PhaseLabel))
}

// madeGood returns now with the missing ones of the given keys restored from old.
func madeGood(old, now map[string]string, keys ...string) map[string]string {
	next := maps.Clone(now)
	for _, key := range keys {
		value, was := old[key]
		if _, is := next[key]; is || !was {
			continue
		}
		if next == nil {
			next = map[string]string{}
		}
		next[key] = value
	}
	return next
}

// mounted reports whether a Workspace is mounted, so another server serves it.
func mounted(u *unstructured.Unstructured) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "mount")
	return found
}

func hasType(u *unstructured.Unstructured) bool {
	_, found, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "type")
	return found
}

var errMountedType = errors.New("spec.type must be unset: a mounted workspace is what it is mounted from")

// setOwner records the user who creates the workspace, in full for the initializers; later
// only the name is kept. A value sent by the client is dropped.
func setOwner(r Request, u *unstructured.Unstructured) error {
	who := r.GetUserInfo()
	annotations := u.GetAnnotations()
	delete(annotations, tenancy.OwnerAnnotation)
	if who != nil && !r.Privileged() {
		text, err := json.Marshal(core.UserInfo{Username: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()})
		if err != nil {
			return err
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[tenancy.OwnerAnnotation] = string(text)
	}
	u.SetAnnotations(annotations)
	return nil
}

func validateNew(r Request) error {
	u, ok := r.GetObject().(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	if mounted(u) && hasType(u) {
		return r.Forbid(errMountedType)
	}
	for _, field := range []struct{ name, why string }{
		{"cluster", "it is chosen by the system"},
		{"URL", "it is set by the system"},
	} {
		// A value that is no text is refused when it is compared with the schema.
		if value, _, _ := unstructured.NestedString(u.Object, "spec", field.name); value != "" {
			return r.Forbid(fmt.Errorf("spec.%s must be unset: %s", field.name, field.why))
		}
	}
	return nil
}

func validateChange(r Request) error {
	if r.GetSubresource() == "status" {
		return r.Forbid(errors.New("the status of a workspace is kept by the system"))
	}
	now, ok := r.GetObject().(*unstructured.Unstructured)
	old, ok2 := r.GetOldObject().(*unstructured.Unstructured)
	if !ok || !ok2 {
		return nil
	}
	for _, field := range filled {
		a, _, _ := unstructured.NestedString(old.Object, "spec", field)
		b, _, _ := unstructured.NestedString(now.Object, "spec", field)
		if a != b {
			return r.Forbid(fmt.Errorf("spec.%s is set by the system and cannot be changed", field))
		}
	}
	if mounted(now) && hasType(now) && !hasType(old) {
		return r.Forbid(errMountedType)
	}
	if mounted(now) != mounted(old) {
		return r.Forbid(errors.New("spec.mount cannot be added or removed: what is in a workspace does not move; make another one"))
	}
	for _, key := range []string{tenancy.OwnerAnnotation, core.RequiredGroupsAnnotation} {
		if old.GetAnnotations()[key] != now.GetAnnotations()[key] {
			return r.Forbid(fmt.Errorf("annotation %s can only be changed by the system", key))
		}
	}
	if old.GetLabels()[core.PhaseLabel] != now.GetLabels()[core.PhaseLabel] {
		return r.Forbid(fmt.Errorf("label %s repeats the phase and cannot be changed", core.PhaseLabel))
	}
	return nil
}
