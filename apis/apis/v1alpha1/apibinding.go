package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// APIBinding gives its logical cluster the resources of an APIExport.
// Deleting it deletes all objects of these resources in the logical cluster.
// To create one, a user needs the verb "bind" on the APIExport.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the binding was bound"
type APIBinding struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the binding.
	// +required
	Spec APIBindingSpec `json:"spec"`

	// status is the observed state of the binding.
	// +optional
	Status APIBindingStatus `json:"status,omitempty"`
}

// APIBindingSpec is the desired state of a binding.
type APIBindingSpec struct {
	// reference says what is bound.
	// Immutable.
	// +kubebuilder:validation:XValidation:rule="has(self.export)",message="export must be set"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="APIExport reference must not be changed"
	// +required
	Reference v1alpha2.BindingReference `json:"reference"`

	// permissionClaims are the answers to the claims of the APIExport.
	// A claim without an answer has no effect.
	// +optional
	PermissionClaims []AcceptablePermissionClaim `json:"permissionClaims,omitempty"`
}

// APIBindingStatus is the observed state of a binding.
type APIBindingStatus struct {
	// apiExportClusterName is the name of the logical cluster that has the APIExport.
	// +optional
	APIExportClusterName string `json:"apiExportClusterName,omitempty"`

	// boundResources are the resources that the logical cluster has through this binding.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +optional
	BoundResources []v1alpha2.BoundResource `json:"boundResources,omitempty"`

	// phase is Binding until the resources are served for the first time, then Bound.
	// Empty before the server has seen the binding.
	// +optional
	Phase v1alpha2.BindingPhase `json:"phase,omitempty"`

	// conditions are the observed conditions of the binding.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// appliedPermissionClaims are the claims that are in effect.
	// +optional
	AppliedPermissionClaims []PermissionClaim `json:"appliedPermissionClaims,omitempty"`

	// exportPermissionClaims are the claims of the APIExport.
	// +optional
	ExportPermissionClaims []PermissionClaim `json:"exportPermissionClaims,omitempty"`
}

// APIBindingList is a list of APIBindings.
//
// +kubebuilder:object:root=true
type APIBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIBindings.
	Items []APIBinding `json:"items"`
}
