package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// APIExportEndpointSlice lists the addresses of the virtual workspace of an APIExport: one for each shard that has APIBindings to the export.
// To create one, a user needs the verb "bind" on the APIExport.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Export",type=string,JSONPath=`.spec.export.name`,description="Name of the APIExport"
// +kubebuilder:printcolumn:name="Partition",type=string,JSONPath=`.spec.partition`,description="Name of the Partition"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || has(self.spec)",message="spec cannot be removed once it is set",fieldPath=".spec"
type APIExportEndpointSlice struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which addresses are listed.
	// +optional
	Spec APIExportEndpointSliceSpec `json:"spec,omitempty"`

	// status has the addresses.
	// +optional
	Status APIExportEndpointSliceStatus `json:"status,omitempty"`
}

// APIExportEndpointSliceSpec says which addresses are listed.
type APIExportEndpointSliceSpec struct {
	// export is the APIExport.
	// Immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="APIExport reference must not be changed"
	// +required
	APIExport v1alpha2.ExportReference `json:"export"`

	// partition is the name of the Partition that selects the shards, in the logical cluster of this object.
	// If empty, all shards are selected.
	// +optional
	Partition string `json:"partition,omitempty"`
}

// APIExportEndpointSliceStatus has the addresses of a virtual workspace.
type APIExportEndpointSliceStatus struct {
	// conditions are the observed conditions of the slice.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// exportClusterName is the name of the logical cluster that had the APIExport first.
	// If another logical cluster takes its place at the path of the reference, the slice does not follow.
	// +optional
	ExportClusterName string `json:"exportClusterName,omitempty"`

	// endpoints are the addresses.
	// +listType=map
	// +listMapKey=url
	// +optional
	Endpoints []Endpoint `json:"endpoints,omitempty"`

	// shardSelector is the label selector of the shards whose addresses are listed, as text.
	// If empty, all shards are selected.
	// +optional
	ShardSelector string `json:"shardSelector,omitempty"`
}

// Endpoint is an address of a virtual workspace.
type Endpoint struct {
	// url is the base URL of the virtual workspace, as used for the server in a kubeconfig, to be followed by "/clusters/<name>".
	// +kubebuilder:validation:MinLength=1
	// +required
	URL string `json:"url"`

	// shards are the shards that should use this address.
	// If empty, these are the shards whose own virtual workspace URL begins the address.
	// +optional
	Shards *EndpointShards `json:"shards,omitempty"`
}

// EndpointShards selects the shards that should use an address.
//
// +kubebuilder:validation:XValidation:rule="(has(self.matchAll) && self.matchAll) != has(self.selector)",message="either matchAll must be true or selector must be set"
type EndpointShards struct {
	// matchAll, if true, selects all shards.
	// Defaults to false.
	// +optional
	MatchAll bool `json:"matchAll,omitempty"`

	// selector selects shards by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// APIExportEndpointSliceList is a list of APIExportEndpointSlices.
//
// +kubebuilder:object:root=true
type APIExportEndpointSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIExportEndpointSlices.
	Items []APIExportEndpointSlice `json:"items"`
}
