// Package v1alpha2 is the API for sharing resources between logical clusters,
// apis.kcp.io/v1alpha2. APIExports and APIBindings are stored in this version.
//
// +kubebuilder:object:generate=true
// +groupName=apis.kcp.io
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "apis.kcp.io", Version: "v1alpha2"}

// AddToScheme registers the kinds of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &APIExport{}, &APIExportList{}, &APIBinding{}, &APIBindingList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
