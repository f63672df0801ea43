package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// Workspace represents a logical cluster in the parent logical cluster.
// Creating a Workspace creates a logical cluster with its own API, served at spec.URL.
// Deleting a Workspace deletes its logical cluster with everything in it and below it.
// The name of the Workspace is the last word of the path of its logical cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp,shortName=ws
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type.name`,description="Type of the workspace"
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.metadata.labels['region']`,description="Region that the workspace is in"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="Phase of the workspace's life cycle"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.URL`,description="Where the workspace is served"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name of a workspace must have 1 to 63 lower-case letters, digits and dashes, and begin and end with a letter or digit",fieldPath=".metadata"
type Workspace struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the workspace.
	// +kubebuilder:default={}
	// +required
	Spec WorkspaceSpec `json:"spec"`

	// status is the observed state of the workspace.
	// +kubebuilder:default={}
	// +optional
	Status WorkspaceStatus `json:"status,omitempty"`
}

// WorkspaceSpec is the desired state of a workspace.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.URL) || size(oldSelf.URL) == 0 || has(self.URL) && size(self.URL) > 0",message="URL cannot be removed once it is set"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cluster) || has(self.cluster)",message="cluster cannot be removed once it is set"
type WorkspaceSpec struct {
	// type is the WorkspaceType of the workspace.
	// It decides which APIs the workspace starts with, who initializes it, and which workspaces may be its children and its parent.
	// Defaults to the default child type of the parent workspace's type.
	// Immutable.
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="the name of the type cannot be changed"
	// +kubebuilder:validation:XValidation:rule="has(self.path) == has(oldSelf.path)",message="the path of the type cannot be added or removed"
	// +kubebuilder:validation:XValidation:rule="!has(self.path) || !has(oldSelf.path) || self.path == oldSelf.path",message="the path of the type cannot be changed"
	// +optional
	Type *WorkspaceTypeReference `json:"type,omitempty"`

	// location restricts which shards may hold the workspace.
	// If empty, any shard may.
	// +optional
	Location *WorkspaceLocation `json:"location,omitempty"`

	// cluster is the name of the logical cluster of this workspace.
	// The server sets it, and it never changes.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cluster cannot be changed"
	// +optional
	Cluster string `json:"cluster,omitempty"`

	// URL is the base URL of the workspace's API, as used for the server in a kubeconfig.
	// The server sets it.
	// +optional
	URL string `json:"URL,omitempty"`

	// mount makes this workspace a mount: the server forwards its requests to the URL in the status of the referenced object.
	// A mount has no logical cluster.
	// Immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mount cannot be changed"
	// +optional
	Mount *Mount `json:"mount,omitempty"`
}

// WorkspaceTypeReference refers to a WorkspaceType.
type WorkspaceTypeReference struct {
	// The pattern checks only the beginning of the name. A name that no type can
	// have gets the same answer as the name of a type that does not exist.

	// name is the name of the WorkspaceType.
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9-]{0,62}`
	// +required
	Name string `json:"name"`

	// path is the path of the logical cluster that has the WorkspaceType.
	// If empty, the type is looked up in the parent logical cluster of the workspace, then in each ancestor, and last in root.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Path string `json:"path,omitempty"`
}

// WorkspaceLocation restricts where a workspace may be placed.
type WorkspaceLocation struct {
	// selector selects shards by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// Mount refers to the object that says where a mounted workspace is served.
type Mount struct {
	// ref is the object whose status.URL is where requests are forwarded to.
	// It is in the same logical cluster as the Workspace, and of a kind that a CustomResourceDefinition there defines.
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) == has(oldSelf.apiVersion)",message="apiVersion cannot be added or removed"
	// +kubebuilder:validation:XValidation:rule="has(self.kind) == has(oldSelf.kind)",message="kind cannot be added or removed"
	// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name)",message="name cannot be added or removed"
	// +required
	Reference ObjectReference `json:"ref"`
}

// ObjectReference refers to an object in the same logical cluster.
type ObjectReference struct {
	// apiVersion is the API group and version of the object.
	// +required
	APIVersion string `json:"apiVersion"`

	// kind is the kind of the object.
	// +required
	Kind string `json:"kind"`

	// name is the name of the object.
	// +required
	Name string `json:"name"`

	// namespace is the namespace of the object.
	// Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// WorkspaceStatus is the observed state of a workspace.
// Except for mounts, it mirrors the status of the LogicalCluster.
type WorkspaceStatus struct {
	// phase is the phase of the workspace's life cycle.
	// The workspace can be used once it is Ready.
	// +kubebuilder:default=Scheduling
	// +optional
	Phase core.Phase `json:"phase,omitempty"`

	// conditions are the observed conditions of the workspace.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// initializers are the initializers that have not finished yet.
	// The workspace becomes Ready when the last one is removed.
	// +optional
	Initializers []core.Initializer `json:"initializers,omitempty"`

	// terminators are the terminators that have not finished yet.
	// The content of a workspace that is being deleted stays until the last one is removed.
	// +optional
	Terminators []core.Terminator `json:"terminators,omitempty"`
}

// WorkspaceList is a list of Workspaces.
//
// +kubebuilder:object:root=true
type WorkspaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the Workspaces.
	Items []Workspace `json:"items"`
}
