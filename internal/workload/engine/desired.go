package engine

import (
	"encoding/json"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// foreign are prefixes of labels and annotations that mean something in the workspace only.
func foreign() []string {
	return []string{"kcp.io/", "internal.workload.kcp.io/", "workload.kcp.io/", "claimed.internal.apis.kcp.io/",
		"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision"}
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

// desired returns the object that a target shall have for its part of a workload: exactly the fields
// that the agent owns there.
func desired(w *unstructured.Unstructured, part *workload.AssignedTarget, from Locator) (*unstructured.Unstructured, error) {
	locator, err := from.text()
	if err != nil {
		return nil, err
	}
	labels, annotations := travels(w.GetLabels()), travels(w.GetAnnotations())
	labels[workload.OwnerLabel] = from.Target
	annotations[workload.LocatorAnnotation] = locator
	spec, _, err := unstructured.NestedMap(w.Object, "spec") // a copy
	if err != nil {
		return nil, err
	}
	if part.Replicas != nil {
		spec["replicas"] = int64(*part.Replicas)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": w.GetAPIVersion(), "kind": w.GetKind(),
		"metadata": map[string]any{"name": w.GetName(), "namespace": from.namespace(), "labels": labels, "annotations": annotations},
		"spec":     spec,
	}}
	text, err := json.Marshal(o) // sorts the keys
	if err != nil {
		return nil, err
	}
	annotations[workload.AppliedAnnotation] = hash(20, string(text))
	return o, nil
}

// current reports whether a target has what it shall have. Between two writes of the agent, the
// generation of the object says whether somebody changed its spec.
func current(want, have *unstructured.Unstructured, applied *workload.TargetStatusSpec) bool {
	if applied == nil || applied.Reason != "" || applied.TargetGeneration != have.GetGeneration() {
		return false
	}
	return within(want.GetLabels(), have.GetLabels()) && within(want.GetAnnotations(), have.GetAnnotations())
}

// within reports whether have has all entries of want.
func within(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// owned reports whether an object was made by the agent of this target for this workload's namespace.
func owned(have *unstructured.Unstructured, from Locator) bool {
	of, ok := locatorOf(have)
	return ok && of == from && have.GetLabels()[workload.OwnerLabel] == from.Target
}

// slim returns an object of a physical cluster as the agent keeps it: without its spec, and without a
// status that no controller of Kubernetes writes.
func slim(o *unstructured.Unstructured) *unstructured.Unstructured {
	content := maps.Clone(o.Object)
	delete(content, "spec")
	if text, err := json.Marshal(content["status"]); err != nil || len(text) > mostStatus {
		delete(content, "status")
	}
	metadata, _, err := unstructured.NestedMap(content, "metadata")
	if err == nil {
		delete(metadata, "managedFields")
		content["metadata"] = metadata
	}
	return &unstructured.Unstructured{Object: content}
}

// sameReport reports whether two reports say the same.
func sameReport(a, b workload.TargetStatusSpec) bool { return equality.Semantic.DeepEqual(a, b) }
