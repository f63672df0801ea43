package engine

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/profile"
)

// foreign are prefixes of labels and annotations that mean something in the workspace only.
func foreign() []string {
	return []string{"kcp.io/", "internal.workload.kcp.io/", "workload.kcp.io/", "claimed.internal.apis.kcp.io/",
		"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision", "pv.kubernetes.io/", "volume.kubernetes.io/selected-node"}
}

// travels returns the labels or annotations of a workload that its copies have, too.
func travels(of map[string]string) map[string]any {
	all := map[string]any{}
	for k, v := range of {
		stays := false
		for _, prefix := range foreign() {
			stays = stays || strings.HasPrefix(k, prefix)
		}
		if !stays {
			all[k] = v
		}
	}
	return all
}

// beside reports whether a top-level field of an object is not its content.
func beside(field string) bool {
	return field == "apiVersion" || field == "kind" || field == "metadata" || field == "status"
}

// desired returns the object that a target shall have for its part of an object: exactly the fields
// that the agent owns there. Part is nil for dependencies.
func desired(p *profile.Profile, w *unstructured.Unstructured, part *workload.AssignedTarget, from Locator) (*unstructured.Unstructured, error) {
	locator, err := from.text()
	if err != nil {
		return nil, err
	}
	w = w.DeepCopy()
	if p.Strip != nil {
		p.Strip(w)
	}
	labels, annotations := travels(w.GetLabels()), travels(w.GetAnnotations())
	labels[workload.OwnerLabel] = from.Target
	annotations[workload.LocatorAnnotation] = locator
	content := map[string]any{"apiVersion": w.GetAPIVersion(), "kind": w.GetKind(),
		"metadata": map[string]any{"name": w.GetName(), "namespace": from.namespace(), "labels": labels, "annotations": annotations}}
	for field, value := range w.Object {
		if !beside(field) {
			scrub(value)
			content[field] = value
		}
	}
	withoutToken(p, content)
	o := &unstructured.Unstructured{Object: content}
	if part != nil && part.Replicas != nil && len(p.Replicas) > 0 {
		if err := unstructured.SetNestedField(content, int64(*part.Replicas), p.Replicas...); err != nil {
			return nil, err
		}
	}
	return o, sign(o)
}

// sign sets the annotation with the hash of the content of an object.
func sign(o *unstructured.Unstructured) error {
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", workload.AppliedAnnotation)
	text, err := json.Marshal(o) // sorts the keys
	if err != nil {
		return err
	}
	return unstructured.SetNestedField(o.Object, hash(20, string(text)), "metadata", "annotations", workload.AppliedAnnotation)
}

// mark adds an annotation to what a target shall have.
func mark(o *unstructured.Unstructured, annotation, value string) error {
	if err := unstructured.SetNestedField(o.Object, value, "metadata", "annotations", annotation); err != nil {
		return err
	}
	return sign(o)
}

// withoutToken makes pods mount no credentials of the physical cluster, whatever the workload says:
// users who may exec would read them.
func withoutToken(p *profile.Profile, content map[string]any) {
	spec, found, err := unstructured.NestedFieldNoCopy(content, p.PodSpec()...)
	pod, ok := spec.(map[string]any)
	if !found || err != nil || !ok {
		return
	}
	pod[automount] = false
	volumes, _ := pod["volumes"].([]any)
	for _, v := range volumes {
		volume, _ := v.(map[string]any)
		projected, _ := volume["projected"].(map[string]any)
		if sources, ok := projected["sources"].([]any); ok {
			projected["sources"] = slices.DeleteFunc(sources, isCredential)
		}
	}
}

// isCredential reports whether a source of a projected volume gives credentials of the physical
// cluster. Admission refuses such sources; older workloads may have them.
func isCredential(source any) bool {
	of, _ := source.(map[string]any)
	return of["serviceAccountToken"] != nil || of["podCertificate"] != nil
}

// automount is the field of a pod by which it mounts a token of its service account.
const automount = "automountServiceAccountToken"

// scrub removes the marks of the engine from templates: controllers of the physical cluster would make
// objects with them that look like the engine's.
func scrub(value any) {
	switch of := value.(type) {
	case map[string]any:
		delete(of, workload.OwnerLabel)
		delete(of, workload.LocatorAnnotation)
		for _, v := range of {
			scrub(v)
		}
	case []any:
		for _, v := range of {
			scrub(v)
		}
	}
}

// current reports whether a target has what it shall have. Between two writes of the agent, the
// generation of the object shows whether it was changed.
func current(want, have *unstructured.Unstructured, applied *workload.TargetStatusSpec) bool {
	if applied == nil || applied.Reason != "" || applied.TargetGeneration != have.GetGeneration() {
		return false
	}
	return marked(want, have)
}

// marked reports whether an object that was slimmed has the labels and annotations that it shall have.
func marked(want, have *unstructured.Unstructured) bool {
	return have.GetAnnotations()[digestAnnotation] == digest(want.GetLabels(), want.GetAnnotations())
}

// digest returns a hash of labels and annotations.
func digest(labels, annotations map[string]string) string {
	text, err := json.Marshal([]map[string]string{labels, annotations}) // sorts the keys
	if err != nil {
		return "" // a bug: strings always encode
	}
	return hash(20, string(text))
}

// owned reports whether an object was made by the agent of this target for this workload's namespace.
func owned(have *unstructured.Unstructured, from Locator) bool {
	of, ok := locatorOf(have)
	return ok && of == from && have.GetLabels()[workload.OwnerLabel] == from.Target
}

const (
	// digestAnnotation is on objects that were slimmed, in place of the labels and annotations of the agent.
	digestAnnotation = "digest"
	// mostText is the maximum of bytes of a string that the agent keeps.
	mostText = 1 << 10
)

// slim returns an object of a physical cluster as the agent uses it: without its content, and without a status
// that no controller of Kubernetes writes. Its size is bounded: of labels and annotations, it has the marks,
// and a hash of those that the agent has applied. An object without a generation gets a hash of its content
// instead.
func slim(o *unstructured.Unstructured) *unstructured.Unstructured {
	content, metadata := map[string]any{}, map[string]any{}
	keep(content, o.Object, "apiVersion", "kind")
	if text, err := json.Marshal(o.Object["status"]); err == nil && len(text) <= mostStatus && o.Object["status"] != nil {
		content["status"] = o.Object["status"]
	}
	has, _ := o.Object["metadata"].(map[string]any)
	keep(metadata, has, "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
	if o.GetGeneration() == 0 {
		metadata["generation"] = fingerprint(o)
	}
	labels, annotations := map[string]any{}, map[string]any{}
	keep(labels, mapOf(has, "labels"), workload.OwnerLabel)
	keep(annotations, mapOf(has, "annotations"), workload.LocatorAnnotation)
	annotations[digestAnnotation] = digest(ours(o))
	metadata["labels"], metadata["annotations"] = labels, annotations
	content["metadata"] = metadata
	return &unstructured.Unstructured{Object: content}
}

// keep copies fields that are short strings or numbers.
func keep(to, from map[string]any, fields ...string) {
	for _, field := range fields {
		switch value := from[field].(type) {
		case string:
			if len(value) <= mostText {
				to[field] = value
			}
		case int64:
			to[field] = value
		}
	}
}

func mapOf(of map[string]any, field string) map[string]any {
	m, _ := of[field].(map[string]any)
	return m
}

// ours returns the labels and annotations of an object that the agent has applied, and that were not
// changed since.
func ours(o *unstructured.Unstructured) (labels, annotations map[string]string) {
	labels, annotations = map[string]string{}, map[string]string{}
	for _, m := range o.GetManagedFields() {
		if m.Manager != manager || m.Operation != metav1.ManagedFieldsOperationApply || m.Subresource != "" || m.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels      map[string]json.RawMessage `json:"f:labels"`
				Annotations map[string]json.RawMessage `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		choose(labels, o.GetLabels(), fields.Metadata.Labels)
		choose(annotations, o.GetAnnotations(), fields.Metadata.Annotations)
	}
	return labels, annotations
}

// choose copies the entries that a set of managed fields names.
func choose(to, from map[string]string, fields map[string]json.RawMessage) {
	for field := range fields {
		if key, ok := strings.CutPrefix(field, "f:"); ok {
			if value, ok := from[key]; ok {
				to[key] = value
			}
		}
	}
}

// pack returns an object of a physical cluster as the agent keeps it: slim, with the text of its status. The maps
// and lists of a status may take many times the memory of their text.
func pack(o *object) *object {
	o = slim(o)
	if status, ok := o.Object["status"]; ok {
		text, err := json.Marshal(status)
		if err != nil {
			text = nil // a bug: it was encoded before
		}
		o.Object["status"] = string(text)
	}
	return o
}

// unpack returns the object that pack was given, slim.
func unpack(o *object) *object {
	text, ok := o.Object["status"].(string)
	if !ok {
		return o
	}
	o = &object{Object: maps.Clone(o.Object)}
	var status any
	if utiljson.Unmarshal([]byte(text), &status) != nil {
		status = nil
	}
	o.Object["status"] = status
	return o
}

// weight returns how much an object that was packed counts: one, and one more for a status of some size.
func weight(o *object) int {
	text, _ := o.Object["status"].(string)
	return 1 + len(text)/heavy
}

// fingerprint returns a hash of the content of an object.
func fingerprint(o *unstructured.Unstructured) int64 {
	says := maps.Clone(o.Object)
	maps.DeleteFunc(says, func(field string, _ any) bool { return beside(field) || field == "secrets" })
	text, err := json.Marshal(says)
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // a hash never fails
	return int64(h.Sum64()>>1) | 1
}

// sameReport reports whether two reports say the same.
func sameReport(a, b workload.TargetStatusSpec) bool { return equality.Semantic.DeepEqual(a, b) }
