package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
)

// ClusterCachedResourceEndpointSlice lists the addresses of the virtual workspace that serves the objects of a ClusterCachedResource to users of an APIExport.
// An APIExport refers to it in spec.resources[].storage.virtual.reference.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="ClusterCachedResource",type=string,JSONPath=`.spec.clusterCachedResource.name`,description="Name of the ClusterCachedResource"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || has(self.spec)",message="spec cannot be removed once it is set",fieldPath=".spec"
type ClusterCachedResourceEndpointSlice struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which addresses are listed.
	// +optional
	Spec ClusterCachedResourceEndpointSliceSpec `json:"spec,omitempty"`

	// status has the addresses.
	// +optional
	Status apis.APIExportEndpointSliceStatus `json:"status,omitempty"`
}

// ClusterCachedResourceEndpointSliceSpec says which addresses are listed.
type ClusterCachedResourceEndpointSliceSpec struct {
	// clusterCachedResource is the ClusterCachedResource.
	// Immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="ClusterCachedResource reference must not be changed"
	// +required
	ClusterCachedResource ClusterCachedResourceReference `json:"clusterCachedResource"`

	// export is the APIExport that provides the resource.
	// Immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="APIExport reference must not be changed"
	// +required
	APIExport apisv1alpha2.ExportReference `json:"export"`

	// partition is the name of the Partition that selects the shards, in the logical cluster of this object.
	// If empty, all shards are selected.
	// +optional
	Partition string `json:"partition,omitempty"`
}

// ClusterCachedResourceReference refers to a ClusterCachedResource.
type ClusterCachedResourceReference struct {
	// path is the path of the logical cluster that has the ClusterCachedResource.
	// Defaults to the logical cluster of the referring object.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Path string `json:"path,omitempty"`

	// name is the name of the ClusterCachedResource.
	// +required
	Name string `json:"name"`
}

// ClusterCachedResourceEndpointSliceList is a list of ClusterCachedResourceEndpointSlices.
//
// +kubebuilder:object:root=true
type ClusterCachedResourceEndpointSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the ClusterCachedResourceEndpointSlices.
	Items []ClusterCachedResourceEndpointSlice `json:"items"`
}
