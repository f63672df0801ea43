package aggregate

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

func unstructuredOf(content map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: content}
}
