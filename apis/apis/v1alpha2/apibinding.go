package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// APIBinding gives its logical cluster the resources of an APIExport.
// Deleting it deletes all objects of these resources in the logical cluster.
// To create one, a user needs the verb "bind" on the APIExport.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
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
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="APIExport reference must not be changed"
	// +required
	Reference BindingReference `json:"reference"`

	// permissionClaims are the answers to the claims of the APIExport.
	// A claim without an answer has no effect.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +listMapKey=identityHash
	// +optional
	PermissionClaims []AcceptablePermissionClaim `json:"permissionClaims,omitempty"`
}

// BindingReference says what is bound.
type BindingReference struct {
	// export is the APIExport that is bound.
	// +optional
	Export *ExportReference `json:"export,omitempty"`
}

// ExportReference refers to an APIExport.
type ExportReference struct {
	// path is the path of the logical cluster that has the APIExport.
	// Defaults to the logical cluster of the referring object.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Path string `json:"path,omitempty"`

	// name is the name of the APIExport.
	// +required
	Name string `json:"name"`
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
	BoundResources []BoundResource `json:"boundResources,omitempty"`

	// phase is Binding until the resources are served for the first time, then Bound.
	// Empty before the server has seen the binding.
	// +optional
	Phase BindingPhase `json:"phase,omitempty"`

	// conditions are the observed conditions of the binding.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// appliedPermissionClaims are the claims that are in effect.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +listMapKey=identityHash
	// +optional
	AppliedPermissionClaims []ScopedPermissionClaim `json:"appliedPermissionClaims,omitempty"`

	// exportPermissionClaims are the claims of the APIExport.
	// +optional
	ExportPermissionClaims []PermissionClaim `json:"exportPermissionClaims,omitempty"`
}

// BindingPhase is a phase of an APIBinding.
//
// +kubebuilder:validation:Enum="";Binding;Bound
type BindingPhase string

const (
	// PhaseBinding is the phase until the resources are served.
	PhaseBinding BindingPhase = "Binding"

	// PhaseBound is the phase after the resources were served for the first time.
	PhaseBound BindingPhase = "Bound"
)

// BoundResource is a resource that a logical cluster has through a binding.
type BoundResource struct {
	// group is the API group of the resource.
	// Empty for the core group.
	// +required
	Group string `json:"group"`

	// resource is the plural name of the resource.
	// +required
	Resource string `json:"resource"`

	// schema is the schema that the resource is served with.
	// +required
	Schema BoundSchema `json:"schema"`

	// storageVersions are the versions in which objects of the resource may be stored.
	// Empty if the objects are stored behind a virtual workspace.
	// +listType=set
	// +optional
	StorageVersions []string `json:"storageVersions,omitempty"`
}

// BoundSchema is the schema of a bound resource.
type BoundSchema struct {
	// name is the name of the APIResourceSchema, in the logical cluster of the APIExport.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`

	// UID is the UID of the APIResourceSchema.
	// +kubebuilder:validation:MinLength=1
	// +required
	UID string `json:"UID"`

	// identityHash is the identity of the APIExport.
	// +kubebuilder:validation:MinLength=1
	// +required
	IdentityHash string `json:"identityHash"`
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
