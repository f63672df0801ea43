package values

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// NewMeta returns the metadata of a new object, whose namespace may be empty.
func NewMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now().Rfc3339Copy()}
}

// Unstructured returns o in the form in which custom resources are stored.
func Unstructured(o runtime.Object, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind)
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	return u, nil
}

// Typed converts a stored custom resource.
func Typed[T any](o runtime.Object) (*T, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("custom resource is stored as %T", o)
	}
	t := new(T)
	return t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, t)
}
