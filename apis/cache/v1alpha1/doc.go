// Package v1alpha1 is the API for publishing objects to consumers of APIExports,
// cache.kcp.io/v1alpha1.
//
// +kubebuilder:object:generate=true
// +groupName=cache.kcp.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "cache.kcp.io", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ClusterCachedResource{}, &ClusterCachedResourceList{},
		&ClusterCachedResourceEndpointSlice{}, &ClusterCachedResourceEndpointSliceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
