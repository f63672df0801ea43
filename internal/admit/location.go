package admit

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// validateLocation returns an error if a new workspace asks for another shard than the one
// that this server is, which has the labels in shard.
func validateLocation(u *unstructured.Unstructured, shard labels.Set) error {
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
	if !wanted.Matches(shard) {
		return fmt.Errorf("spec.location.selector %q matches no shard: this server has a single one, with the labels %s; leave the selector out", wanted, shard)
	}
	return nil
}
