package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// Workspace is a logical cluster as seen from the one above it.
// Creating a Workspace makes a logical cluster with an API of its own at spec.URL; deleting it deletes everything in there.
// Its name becomes the last word of the path of the logical cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp,shortName=ws
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type.name`,description="Type of the workspace"
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.metadata.labels['region']`,description="Region that the workspace is in"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="How far the life of the workspace has come"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.URL`,description="Where the workspace is served"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name of a workspace must have 1 to 63 lower-case letters, digits and dashes, and begin and end with a letter or digit"
type Workspace struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the workspace is to be.
	// +kubebuilder:default={}
	// +required
	Spec WorkspaceSpec `json:"spec"`

	// What the workspace is now.
	// +kubebuilder:default={}
	// +optional
	Status WorkspaceStatus `json:"status,omitempty"`
}

// WorkspaceSpec says what a workspace is to be.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.URL) || size(oldSelf.URL) == 0 || has(self.URL) && size(self.URL) > 0",message="URL cannot be removed once it is set"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cluster) || has(self.cluster)",message="cluster cannot be removed once it is set"
type WorkspaceSpec struct {
	// What the workspace is made from.
	// Decides which APIs it starts with, who prepares it, and which workspaces may be below and above it.
	// The type that the workspace above has as its default if not given.
	// Cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="the name of the type cannot be changed"
	// +kubebuilder:validation:XValidation:rule="has(self.path) == has(oldSelf.path)",message="the path of the type cannot be added or removed"
	// +kubebuilder:validation:XValidation:rule="!has(self.path) || !has(oldSelf.path) || self.path == oldSelf.path",message="the path of the type cannot be changed"
	// +optional
	Type *WorkspaceTypeReference `json:"type,omitempty"`

	// Where the workspace may be placed. Anywhere if not given.
	// +optional
	Location *WorkspaceLocation `json:"location,omitempty"`

	// Name of the logical cluster that this workspace stands for.
	// Set by the server and never changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cluster cannot be changed"
	// +optional
	Cluster string `json:"cluster,omitempty"`

	// Base URL of the workspace's API: what a kubeconfig has as its server.
	// Set by the server.
	// +optional
	URL string `json:"URL,omitempty"`

	// Lets something outside this server serve the workspace: requests to it are passed on to the URL in the status of the object named here.
	// No logical cluster is made.
	// Cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mount cannot be changed"
	// +optional
	Mount *Mount `json:"mount,omitempty"`
}

// WorkspaceTypeReference refers to a WorkspaceType.
type WorkspaceTypeReference struct {
	// The pattern looks at the beginning of the name only: one that no type can
	// have is answered like any other that does not exist.

	// Name of the WorkspaceType.
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9-]{0,62}`
	// +required
	Name string `json:"name"`

	// Path of the logical cluster that the WorkspaceType is in.
	// If not given, it is looked for in the logical cluster of the workspace, in those above it, and in the root.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Path string `json:"path,omitempty"`
}

// WorkspaceLocation restricts where a workspace may be placed.
type WorkspaceLocation struct {
	// Labels that a shard must have to be chosen.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// Mount says what serves a workspace that is not served by this server.
type Mount struct {
	// The object whose status tells the URL to pass requests on to.
	// It is in the same logical cluster as the workspace, and of a kind that is marked as mountable.
	// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) == has(oldSelf.apiVersion)",message="apiVersion cannot be added or removed"
	// +kubebuilder:validation:XValidation:rule="has(self.kind) == has(oldSelf.kind)",message="kind cannot be added or removed"
	// +kubebuilder:validation:XValidation:rule="has(self.name) == has(oldSelf.name)",message="name cannot be added or removed"
	// +required
	Reference ObjectReference `json:"ref"`
}

// ObjectReference refers to an object in the same logical cluster.
type ObjectReference struct {
	// Group and version of the object.
	// +required
	APIVersion string `json:"apiVersion"`

	// Kind of the object.
	// +required
	Kind string `json:"kind"`

	// Name of the object.
	// +required
	Name string `json:"name"`

	// Namespace of the object. Empty for objects without one.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// WorkspaceStatus says what a workspace is now.
// Except for mounts it follows the status of the LogicalCluster.
type WorkspaceStatus struct {
	// How far the life of the workspace has come. It can be used once it is Ready.
	// +kubebuilder:default=Scheduling
	// +optional
	Phase core.Phase `json:"phase,omitempty"`

	// What has been observed about the workspace.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// Initializers that have not finished.
	// With the last one gone the workspace becomes Ready.
	// +optional
	Initializers []core.Initializer `json:"initializers,omitempty"`

	// Terminators that have not finished.
	// With the last one gone the content of the workspace is deleted.
	// +optional
	Terminators []core.Terminator `json:"terminators,omitempty"`
}

// WorkspaceList is a list of Workspaces.
//
// +kubebuilder:object:root=true
type WorkspaceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// The Workspaces of the list.
	Items []Workspace `json:"items"`
}
