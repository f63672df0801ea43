package provider

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// A form is how the objects of a cache are decoded.
type form int

const (
	typed form = iota
	untyped
	onlyMetadata
	onlyIdentity // what keys and tenants need of the metadata
)

// A kindKey identifies a cache.
type kindKey struct {
	schema.GroupVersionKind
	form form
}

// kindOf returns the cache for an object or a list.
func kindOf(o runtime.Object, scheme *runtime.Scheme) (kindKey, error) {
	gvk, err := apiutil.GVKForObject(o, scheme)
	if err != nil {
		return kindKey{}, err
	}
	key := kindKey{GroupVersionKind: gvk}
	if _, list := o.(client.ObjectList); list {
		key.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	switch o.(type) {
	case runtime.Unstructured:
		key.form = untyped
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		key.form = onlyMetadata
	}
	return key, nil
}

// maker returns a function that makes empty objects.
func (k kindKey) maker(scheme *runtime.Scheme) (func() client.Object, error) {
	switch k.form {
	case untyped:
		return func() client.Object { return &unstructured.Unstructured{} }, nil
	case onlyMetadata, onlyIdentity:
		return func() client.Object { return &metav1.PartialObjectMetadata{} }, nil
	}
	if _, err := scheme.New(k.GroupVersionKind); err != nil {
		return nil, err
	}
	return func() client.Object {
		o, _ := scheme.New(k.GroupVersionKind) // it has succeeded above
		return o.(client.Object)
	}, nil
}

func notFound(resource schema.GroupResource, name string) error {
	return apierrors.NewNotFound(resource, name)
}
