// Package merging names the parts of a value of an object that is converted while server-side apply merges it, so
// that each part can be removed. It hides how server-side apply uses conversions.
package merging

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// prefix begins the keys of annotations that name the parts of a value. Objects have them only
// while server-side apply merges them.
const prefix = "merge.kcp.io/"

// Possible reports whether server-side apply may have o converted in order to merge it: o comes from the storage, and
// has managers in several versions, one of which applies.
//
// To remove a field, server-side apply converts the object with the field and the object without it
// to the versions of all managers. There it removes what only the former has. A conversion to a version
// without the field can keep several fields in one value, such as an annotation. Both objects have this value, and
// the one of the former returns with the field that was removed. So such a conversion names the parts of the
// value, with [NameParts], and the conversion back restores only those that [TakeParts] still finds.
//
// At the next minor version: look at addBackOwnedItemsForVersion in
// sigs.k8s.io/structured-merge-diff/v6/merge/update.go, and at whether Apply in
// k8s.io/apimachinery/pkg/util/managedfields/internal/fieldmanager.go still leaves the managed fields in the
// object that it merges.
func Possible(o metav1.Object) bool {
	fields := o.GetManagedFields()
	return o.GetResourceVersion() != "" && slices.ContainsFunc(fields, timed) &&
		slices.ContainsFunc(fields, func(f metav1.ManagedFieldsEntry) bool { return f.Operation == metav1.ManagedFieldsOperationApply }) &&
		slices.ContainsFunc(fields, func(f metav1.ManagedFieldsEntry) bool { return f.APIVersion != fields[0].APIVersion })
}

// End makes Possible false for the object of a dry run that has been merged: the libraries convert it once more, to the
// object in the response. The managed fields in the response lack their times, and
// are in another order.
//
// At the next minor version: look at IgnoreManagedFieldsTimestampsTransformer in
// k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager/equality.go, and at copyInto in
// k8s.io/apiserver/pkg/registry/generic/registry/dryrun.go.
func End(o metav1.Object) {
	if !Possible(o) {
		return
	}
	fields := slices.Clone(o.GetManagedFields())
	for i := range fields {
		fields[i].Time = nil
	}
	slices.Reverse(fields) // if nothing but times has changed, the libraries restore the times
	o.SetManagedFields(fields)
}

// timed reports whether an entry has a time, as all have that the server stores.
func timed(f metav1.ManagedFieldsEntry) bool { return f.Time != nil }

// NameParts adds an annotation to o for each part of a value.
func NameParts(o metav1.Object, value string, parts []string) {
	annotations := maps.Clone(o.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	for _, part := range parts {
		annotations[keyOf(value)+idOf(part)] = ""
	}
	o.SetAnnotations(annotations)
}

// TakeParts removes the annotations for the parts of a value from o, and returns a function that reports whether
// o still has a part. It has all of them if none has an annotation.
func TakeParts(o metav1.Object, value string) func(part string) bool {
	left, found := maps.Clone(o.GetAnnotations()), map[string]bool{}
	for key := range o.GetAnnotations() {
		if id, ok := strings.CutPrefix(key, keyOf(value)); ok {
			found[id] = true
			delete(left, key)
		}
	}
	if len(found) == 0 {
		return func(string) bool { return true }
	}
	if len(left) == 0 {
		left = nil
	}
	o.SetAnnotations(left)
	return func(part string) bool { return found[idOf(part)] }
}

// DropParts removes all annotations for parts from the annotations of an object that is not merged, or not any more. It
// reports whether there were any.
func DropParts(annotations map[string]string) bool {
	n := len(annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, prefix) })
	return len(annotations) < n
}

func keyOf(value string) string { return prefix + idOf(value) + "." }

func idOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}
