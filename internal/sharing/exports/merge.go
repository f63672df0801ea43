package exports

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/upstream/merging"
)

// kept are the annotations of v1alpha1 with entries of lists in the spec that only v1alpha2 has.
func kept() []string {
	return []string{apisv1alpha2.ResourceSchemasAnnotation, apisv1alpha2.PermissionClaimsAnnotation, apisv1alpha2.AcceptablePermissionClaimsAnnotation}
}

// answersField is the list of answers of an APIBinding. In v1alpha1 it is one field to server-side apply.
func answersField() []string { return []string{"spec", "permissionClaims"} }

// nameEntries records on an object in v1alpha1 which entries its lists have in v1alpha2, if server-side apply may have
// converted it from the object of. Without that, a claim that an applier withdraws would come back.
func nameEntries(of, converted *unstructured.Unstructured) {
	if converted.GetAPIVersion() != apisv1alpha1.GroupVersion.String() || !merging.Possible(of) {
		return
	}
	for _, key := range kept() {
		if entries := entriesIn(converted, key); len(entries) > 0 {
			merging.NameParts(converted, key, names(entries))
		}
	}
	if answers := answersOf(converted); len(answers) > 0 {
		merging.NameParts(converted, "spec", names(answers))
	}
}

// dropEntries returns an object in v1alpha1 without the entries that server-side apply has removed.
func dropEntries(o *unstructured.Unstructured) *unstructured.Unstructured {
	if o.GetAPIVersion() != apisv1alpha1.GroupVersion.String() {
		return o
	}
	o = o.DeepCopy()
	for _, key := range kept() {
		has, entries := merging.TakeParts(o, key), entriesIn(o, key)
		left := without(slices.Clone(entries), has)
		if len(left) == len(entries) {
			continue
		}
		text, err := json.Marshal(left)
		if err != nil {
			panic(err) // a bug: it has been decoded from JSON
		}
		annotations := o.GetAnnotations()
		annotations[key] = string(text)
		o.SetAnnotations(annotations)
	}
	has, answers := merging.TakeParts(o, "spec"), answersOf(o)
	if left := without(slices.Clone(answers), has); len(left) < len(answers) {
		if err := unstructured.SetNestedSlice(o.Object, left, answersField()...); err != nil {
			panic(err) // a bug: spec is an object
		}
	}
	return o
}

func answersOf(o *unstructured.Unstructured) []any {
	if o.GetKind() != "APIBinding" {
		return nil
	}
	all, _, _ := unstructured.NestedSlice(o.Object, answersField()...) // none if malformed
	return all
}

// entriesIn returns the entries in an annotation, nil if it is malformed.
func entriesIn(o *unstructured.Unstructured, key string) []any {
	var all []any
	if json.Unmarshal([]byte(o.GetAnnotations()[key]), &all) != nil {
		return nil
	}
	return all
}

// names returns names for entries, except for those that only stand for the place of another.
func names(entries []any) []string {
	var all []string
	for _, e := range entries {
		if e != nil {
			all = append(all, nameOf(e))
		}
	}
	return all
}

// nameOf returns a name for an entry: the fields by which v1alpha2 knows it.
func nameOf(entry any) string {
	e, _ := entry.(map[string]any)
	key := make([]any, 0, 4)
	for _, field := range []string{"group", "resource", "name", "identityHash"} {
		text, _ := e[field].(string) // the empty string may be omitted
		key = append(key, text)
	}
	return fmt.Sprintf("%q", key)
}

// without removes the entries that are not there any more.
func without(entries []any, has func(string) bool) []any {
	return slices.DeleteFunc(entries, func(e any) bool { return e != nil && !has(nameOf(e)) })
}
