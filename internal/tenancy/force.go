package tenancy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// IsForced reports whether the deletion of a Workspace or LogicalCluster, which has
// begun, is to wait for nobody.
func IsForced(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && o.GetAnnotations()[core.ForceDeleteAnnotation] != ""
}

func (d *death) isForced() bool {
	return IsForced(d.root) || d.workspace != nil && IsForced(d.workspace)
}

// force has the objects of a death say that it is forced, and why and by whom, and
// reports whether they did not. What is below finds it there.
func (d *death) force(above map[string]string) bool {
	all := []metav1.Object{d.root}
	if d.workspace != nil {
		all = append(all, d.workspace)
	}
	why := above
	for _, o := range all {
		if o.GetAnnotations()[core.ForceDeleteAnnotation] != "" {
			why = o.GetAnnotations()
		}
	}
	changed := false
	for _, o := range all {
		if o.GetAnnotations()[core.ForceDeleteAnnotation] != "" {
			continue
		}
		annotations := map[string]string{}
		for k, v := range o.GetAnnotations() {
			annotations[k] = v
		}
		for _, key := range []string{core.ForceDeleteAnnotation, core.ForceDeletedByAnnotation} {
			annotations[key] = why[key]
		}
		o.SetAnnotations(annotations)
		changed = true
	}
	return changed
}
