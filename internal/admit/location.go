package admit

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// onlyShard returns the labels of the only shard. A workspace may select no other shard.
func onlyShard() labels.Set { return labels.Set{"name": "root"} }

// validateLocation returns an error if a new workspace asks for a shard that does
// not exist.
func validateLocation(u *unstructured.Unstructured) error {
	value, found, err := unstructured.NestedMap(u.Object, "spec", "location", "selector")
	if err != nil || !found {
		return nil //nolint:nilerr // it is refused when it is compared with the schema
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(value, &selector); err != nil {
		return fmt.Errorf("spec.location.selector is not a label selector: %w", err)
	}
	wanted, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil {
		return fmt.Errorf("spec.location.selector is not a label selector: %w", err)
	}
	if !wanted.Matches(onlyShard()) {
		return fmt.Errorf("spec.location.selector %q matches no shard: this server has a single one, with the labels %s; leave the selector out", wanted, onlyShard())
	}
	return nil
}
