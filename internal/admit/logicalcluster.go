package admit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// LogicalClusters protects the spec, the status, and the annotations and labels of kcp.io
// of LogicalClusters. RBAC decides who writes the rest. Users create and delete a
// LogicalCluster with its Workspace.
func LogicalClusters() Rule {
	return Rule{
		Name: "core.kcp.io/LogicalCluster",
		Mutate: func(_ context.Context, r Request) error {
			if r.Is(logicalClusters) && r.GetOperation() == admission.Update {
				keepFinalizer(r, core.DeletionFinalizer)
				keepSystemKeys(r)
			}
			return nil
		},
		Validate: func(ctx context.Context, r Request) error {
			if !r.Is(logicalClusters) {
				return nil
			}
			if f, ok := finishing(ctx); ok {
				return f.validate(r)
			}
			if r.GetOperation() == admission.Delete {
				return validateEnd(r)
			}
			if r.Cluster == cluster.Root && r.GetOperation() == admission.Update && inactiveAnywhere(r.Object()) {
				return r.Forbid(errors.New("the root workspace cannot be taken offline"))
			}
			if r.GetOperation() == admission.Update {
				if err := checkLimits(r); err != nil {
					return err
				}
			}
			if r.Privileged() {
				return nil
			}
			switch r.GetOperation() {
			case admission.Create:
				return r.Forbid(errors.New("LogicalCluster cannot be created; create a Workspace instead"))
			case admission.Update:
				return validateLogicalCluster(r)
			default:
				return nil
			}
		},
	}
}

// operators are the groups of operators of the server.
func operators() []string {
	return []string{auth.AdminGroup, auth.LogicalClusterAdminGroup, auth.ExternalLogicalClusterAdminGroup}
}

// operator reports whether the request comes from an operator of the server.
func (r Request) operator() bool {
	u := r.GetUserInfo()
	return u != nil && auth.IsMember(r.Cluster, u, operators()...)
}

// system reports whether the key of an annotation or label is of kcp.io.
func system(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	return found && (domain == "kcp.io" || strings.HasSuffix(domain, ".kcp.io"))
}

// derived reports whether the store sets a label from the status.
func derived(label string) bool {
	return label == core.PhaseLabel || strings.HasPrefix(label, core.InitializerLabelPrefix) || strings.HasPrefix(label, core.TerminatorLabelPrefix)
}

// settable returns the annotations of kcp.io that operators may change.
func settable() []string {
	return slices.Concat(inactivity, sizeLimits, []string{core.ForceDeleteAnnotation, core.ForceDeletedByAnnotation})
}

// sizeLimits are the annotations with the limits of a logical cluster.
var sizeLimits = []string{core.MaxTotalObjectsAnnotation, core.MaxTotalBytesAnnotation, core.MaxTreeObjectsAnnotation, core.MaxTreeBytesAnnotation}

// checkLimits refuses limits that are not numbers.
func checkLimits(r Request) error {
	for _, key := range sizeLimits {
		value, ok := r.Object().GetAnnotations()[key]
		if _, err := strconv.ParseInt(value, 10, 64); ok && err != nil {
			return r.Forbid(fmt.Errorf("annotation %s is %q and has to be a whole number; 0 means no limit", key, value))
		}
	}
	return nil
}

// keepSystemKeys restores annotations and labels of the system that an update omits, as
// manifests lack them. It does not restore annotations that operators may set: they remove
// these by omitting them.
func keepSystemKeys(r Request) {
	old, now := r.Old(), r.Object()
	if old == nil || now == nil || r.Privileged() || r.GetSubresource() != "" {
		return
	}
	annotations, labels := slices.Collect(maps.Keys(old.GetAnnotations())), slices.Collect(maps.Keys(old.GetLabels()))
	annotations = slices.DeleteFunc(annotations, func(key string) bool {
		return !system(key) || slices.Contains(settable(), key) && (r.operator() || !slices.Contains(sizeLimits, key))
	})
	labels = slices.DeleteFunc(labels, func(key string) bool { return !system(key) })
	now.SetAnnotations(madeGood(old.GetAnnotations(), now.GetAnnotations(), annotations...))
	now.SetLabels(madeGood(old.GetLabels(), now.GetLabels(), labels...))
}

// validateLogicalCluster refuses an update that changes fields of the system.
func validateLogicalCluster(r Request) error {
	old, ok := r.GetOldObject().(*unstructured.Unstructured)
	now, ok2 := r.GetObject().(*unstructured.Unstructured)
	switch {
	case !ok || !ok2:
		return r.Forbid(errors.New("a LogicalCluster can only be updated here"))
	case r.GetSubresource() == "status":
		return validateFinished(r, old, now)
	case r.GetSubresource() != "":
		return r.Forbid(fmt.Errorf("subresource %s of LogicalCluster is kept by the system and cannot be changed", r.GetSubresource()))
	case !equality.Semantic.DeepEqual(old.Object["spec"], now.Object["spec"]):
		return r.Forbid(errors.New("spec of LogicalCluster is kept by the system and cannot be changed"))
	case !equality.Semantic.DeepEqual(old.GetOwnerReferences(), now.GetOwnerReferences()):
		return r.Forbid(errors.New("metadata.ownerReferences of LogicalCluster cannot be changed: it is deleted with its Workspace"))
	}
	for _, key := range changed(old.GetAnnotations(), now.GetAnnotations()) {
		// The rule ForceDelete decides on the annotations of forced deletion.
		if !system(key) || slices.Contains(settable(), key) && (r.operator() || !slices.Contains(inactivity, key) && !slices.Contains(sizeLimits, key)) {
			continue
		}
		return r.Forbid(fmt.Errorf("annotation %s of LogicalCluster is kept by the system and cannot be changed", key))
	}
	for _, key := range changed(old.GetLabels(), now.GetLabels()) {
		if system(key) && !derived(key) {
			return r.Forbid(fmt.Errorf("label %s of LogicalCluster is kept by the system and cannot be changed", key))
		}
	}
	return nil
}

// changed returns the keys whose values differ, sorted.
func changed(old, now map[string]string) []string {
	var keys []string
	for key, value := range old {
		if is, ok := now[key]; !ok || is != value {
			keys = append(keys, key)
		}
	}
	for key := range now {
		if _, ok := old[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// validateFinished lets operators remove initializers and terminators that never finish
// from a status. Any other change of the status is refused.
func validateFinished(r Request, old, now *unstructured.Unstructured) error {
	if r.operator() && onlyRemoved(old, now) {
		return nil
	}
	return r.Forbid(fmt.Errorf("the status of LogicalCluster is kept by the system; members of %s can remove initializers and terminators from it", auth.AdminGroup))
}

// onlyRemoved reports whether a status only lost initializers or terminators.
func onlyRemoved(old, now *unstructured.Unstructured) bool {
	before, after := statusOf(old), statusOf(now)
	for _, list := range []string{"initializers", "terminators"} {
		was, _, err := unstructured.NestedStringSlice(before, list)
		is, _, err2 := unstructured.NestedStringSlice(after, list)
		left := slices.DeleteFunc(was, func(name string) bool { return !slices.Contains(is, name) })
		if err != nil || err2 != nil || !slices.Equal(left, is) {
			return false
		}
		delete(before, list)
		delete(after, list)
	}
	return equality.Semantic.DeepEqual(before, after)
}

// statusOf returns a copy of the status of an object.
func statusOf(u *unstructured.Unstructured) map[string]any {
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	if status == nil {
		status = map[string]any{}
	}
	return status
}

// validateEnd lets a cluster be deleted directly only if its spec allows it: no Workspace
// refers to it then.
func validateEnd(r Request) error {
	if r.Cluster == cluster.Root {
		return r.Forbid(errors.New("the root workspace cannot be deleted"))
	}
	u, ok := r.GetOldObject().(*unstructured.Unstructured)
	if !ok {
		return nil // a collection, whose objects are asked about one by one
	}
	if direct, _, _ := unstructured.NestedBool(u.Object, "spec", "directlyDeletable"); direct {
		return nil
	}
	if !r.Privileged() {
		return r.Forbid(errors.New("LogicalCluster cannot be deleted; delete its Workspace instead"))
	}
	name, _, _ := unstructured.NestedString(u.Object, "spec", "owner", "name")
	parent, _, _ := unstructured.NestedString(u.Object, "spec", "owner", "cluster")
	return r.Forbid(fmt.Errorf("LogicalCluster cannot be deleted; delete workspace %s in logical cluster %s instead", name, parent))
}

// inactivity are the annotations that take a logical cluster offline.
var inactivity = []string{core.InactiveAnnotation, core.LegacyInactiveAnnotation}

func inactiveAnywhere(o metav1.Object) bool {
	return o != nil && slices.ContainsFunc(inactivity, func(key string) bool { return o.GetAnnotations()[key] == "true" })
}
