// Package v1alpha1 is the API for sharing resources between logical clusters,
// apis.kcp.io/v1alpha1. APIExports and APIBindings are stored in version v1alpha2, and this
// package converts them.
//
// +kubebuilder:object:generate=true
// +groupName=apis.kcp.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "apis.kcp.io", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &APIExport{}, &APIExportList{}, &APIBinding{}, &APIBindingList{},
		&APIResourceSchema{}, &APIResourceSchemaList{}, &APIConversion{}, &APIConversionList{},
		&APIExportEndpointSlice{}, &APIExportEndpointSliceList{}, &APIExportRollout{}, &APIExportRolloutList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
