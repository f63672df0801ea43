package admit

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxSelector is the maximum number of requirements in the selector of a workspace.
const maxSelector = 20

// validateLocation returns an error if the selector of a workspace is malformed.
func validateLocation(u *unstructured.Unstructured) error {
	value, found, err := unstructured.NestedMap(u.Object, "spec", "location", "selector")
	if err != nil || !found {
		return nil //nolint:nilerr // it is refused when it is compared with the schema
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(value, &selector); err != nil {
		return fmt.Errorf("spec.location.selector is not a label selector: %w", err)
	}
	if n := len(selector.MatchLabels) + len(selector.MatchExpressions); n > maxSelector {
		return fmt.Errorf("spec.location.selector has %d requirements, and the limit is %d", n, maxSelector)
	}
	if _, err := metav1.LabelSelectorAsSelector(&selector); err != nil {
		return fmt.Errorf("spec.location.selector is not a label selector: %w", err)
	}
	return nil
}
