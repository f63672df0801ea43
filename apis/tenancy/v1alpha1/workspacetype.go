package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// WorkspaceType says what workspaces are made from: how they begin, who prepares them and cleans up after them, and which workspaces may be below and above them.
// Whoever makes a workspace of a type needs the verb "use" on it, and on every type that it extends.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name of a workspace type must have 1 to 63 lower-case letters, digits and dashes, and begin and end with a letter or digit"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['system', 'any'])",message="the names system and any are reserved; choose another for the workspace type"
type WorkspaceType struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What workspaces of the type are to be.
	// +optional
	Spec WorkspaceTypeSpec `json:"spec,omitempty"`

	// What the server tells about the type.
	// +optional
	Status WorkspaceTypeStatus `json:"status,omitempty"`
}

// WorkspaceTypeSpec says what workspaces of a type are to be.
type WorkspaceTypeSpec struct {
	// Whether somebody outside the server prepares workspaces of this type.
	// They stay Initializing until the initializer, which is called "<logical cluster>:<name of this type>", has been removed from their status.
	// +optional
	Initializer bool `json:"initializer,omitempty"`

	// What the initializer may do in workspaces that it prepares.
	// If there are none, it does everything as the user who made the workspace.
	// +optional
	InitializerPermissions []rbacv1.PolicyRule `json:"initializerPermissions,omitempty"`

	// Whether somebody outside the server cleans up after workspaces of this type.
	// When they are deleted, their content stays until the terminator, which is called "<logical cluster>:<name of this type>", has been removed from their status.
	// +optional
	Terminator bool `json:"terminator,omitempty"`

	// What the terminator may do in workspaces that it cleans up after.
	// +optional
	TerminatorPermissions []rbacv1.PolicyRule `json:"terminatorPermissions,omitempty"`

	// Types that workspaces of this type are of, too.
	// Initializers, terminators and limits of all of them apply.
	// +optional
	Extend *WorkspaceTypeExtension `json:"extend,omitempty"`

	// Labels that workspaces of this type get when they are made, unless they have the label.
	// With the life cycle Maintain those that exist get it, too.
	// +optional
	AdditionalWorkspaceLabels map[string]string `json:"additionalWorkspaceLabels,omitempty"`

	// Type of the workspaces that are made in a workspace of this type without saying which.
	// +kubebuilder:default={name: "universal", path: "root"}
	// +optional
	DefaultChildWorkspaceType *WorkspaceTypeReference `json:"defaultChildWorkspaceType,omitempty"`

	// Which workspaces may be in a workspace of this type. Any if not given.
	// +optional
	LimitAllowedChildren *WorkspaceTypeSelector `json:"limitAllowedChildren,omitempty"`

	// Which workspaces a workspace of this type may be in. Any if not given.
	// +optional
	LimitAllowedParents *WorkspaceTypeSelector `json:"limitAllowedParents,omitempty"`

	// Exports that workspaces of this type are bound to when they are made.
	// +optional
	DefaultAPIBindings []APIExportReference `json:"defaultAPIBindings,omitempty"`

	// What becomes of existing workspaces when this type is changed: nothing with InitializeOnly, the default.
	// With Maintain, what the type gives to workspaces is given to those that exist, too.
	// +optional
	DefaultAPIBindingLifecycle *APIBindingLifecycle `json:"defaultAPIBindingLifecycle,omitempty"`

	// Who else, besides those whom the server knows, may come to workspaces of this type: names of WorkspaceAuthenticationConfigurations in the logical cluster of this type.
	// +optional
	AuthenticationConfigurations []AuthenticationConfigurationReference `json:"authenticationConfigurations,omitempty"`
}

// WorkspaceTypeExtension names the types that a type extends.
type WorkspaceTypeExtension struct {
	// The types. One without a path is looked for in the logical cluster of the type that extends it, in those above it, and in the root.
	// +optional
	With []WorkspaceTypeReference `json:"with,omitempty"`
}

// WorkspaceTypeSelector says which types are allowed.
//
// +kubebuilder:validation:ExactlyOneOf=none;types
type WorkspaceTypeSelector struct {
	// That no workspace is allowed.
	// +optional
	None *bool `json:"none,omitempty"`

	// That workspaces are allowed which are of one of these types, or of one that extends it.
	// Each has a path.
	// +kubebuilder:validation:MinItems=1
	// +optional
	Types []WorkspaceTypeReference `json:"types,omitempty"`
}

// APIExportReference refers to an APIExport.
type APIExportReference struct {
	// Path of the logical cluster that the APIExport is in.
	// That of the type if not given.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Path string `json:"path,omitempty"`

	// Name of the APIExport.
	// +required
	Export string `json:"export"`
}

// APIBindingLifecycle says what becomes of existing workspaces when their type is changed.
//
// +kubebuilder:validation:Enum=InitializeOnly;Maintain
type APIBindingLifecycle string

const (
	// InitializeOnly leaves workspaces as they were made.
	InitializeOnly APIBindingLifecycle = "InitializeOnly"

	// Maintain gives to existing workspaces what their type gives to new ones.
	Maintain APIBindingLifecycle = "Maintain"
)

// AuthenticationConfigurationReference refers to a WorkspaceAuthenticationConfiguration.
type AuthenticationConfigurationReference struct {
	// Name of the WorkspaceAuthenticationConfiguration, in the logical cluster of the type.
	// +required
	Name string `json:"name"`
}

// WorkspaceTypeStatus is what the server tells about a type.
type WorkspaceTypeStatus struct {
	// What has been observed about the type.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// Where the workspaces of this type that wait for its initializer or its terminator are found.
	// +optional
	VirtualWorkspaces []VirtualWorkspace `json:"virtualWorkspaces,omitempty"`
}

// VirtualWorkspace tells where workspaces in one stage of their life are found.
type VirtualWorkspace struct {
	// Base URL: what a kubeconfig has as its server, with the logical cluster to follow.
	// +kubebuilder:validation:MinLength=1
	// +required
	URL string `json:"url"`

	// Which workspaces are found there.
	// +optional
	Type VirtualWorkspaceType `json:"type,omitempty"`
}

// VirtualWorkspaceType is the stage of life of the workspaces of a VirtualWorkspace.
//
// +kubebuilder:validation:Enum=initializing;terminating
type VirtualWorkspaceType string

const (
	// Initializing workspaces wait for the initializer of their type.
	Initializing VirtualWorkspaceType = "initializing"

	// Terminating workspaces wait for the terminator of their type.
	Terminating VirtualWorkspaceType = "terminating"
)

// WorkspaceTypeList is a list of WorkspaceTypes.
//
// +kubebuilder:object:root=true
type WorkspaceTypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// The WorkspaceTypes of the list.
	Items []WorkspaceType `json:"items"`
}
