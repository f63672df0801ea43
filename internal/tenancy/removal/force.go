package removal

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// IsForced reports whether the deletion of a Workspace or LogicalCluster has begun and is
// forced.
func IsForced(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && o.GetAnnotations()[core.ForceDeleteAnnotation] != ""
}

func (d *deletion) isForced() bool {
	return IsForced(d.Root) || d.Workspace != nil && IsForced(d.Workspace)
}

// force annotates the objects of a deletion with the reason and the user of the forced
// deletion, and reports whether it changed them. The deletion of the clusters below copies
// the annotations from here.
func (d *deletion) force(above map[string]string) bool {
	all := []metav1.Object{d.Root}
	if d.Workspace != nil {
		all = append(all, d.Workspace)
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
