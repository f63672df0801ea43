package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// WorkspaceType describes a kind of workspace: what it starts with, who initializes and terminates it, and which workspaces may be its children and its parent.
// To create a workspace of a type, a user needs the verb "use" on the type and on every type that it extends.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name of a workspace type must have 1 to 63 lower-case letters, digits and dashes, and begin and end with a letter or digit",fieldPath=".metadata"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['system', 'any'])",message="the names system and any are reserved; choose another for the workspace type",fieldPath=".metadata"
type WorkspaceType struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the description of workspaces of this type.
	// +optional
	Spec WorkspaceTypeSpec `json:"spec,omitempty"`

	// status is the observed state of the type.
	// +optional
	Status WorkspaceTypeStatus `json:"status,omitempty"`
}

// WorkspaceTypeSpec describes workspaces of a type.
type WorkspaceTypeSpec struct {
	// initializer says whether a controller outside the server initializes workspaces of this type.
	// Such a workspace stays Initializing until the initializer "<logical cluster of this type>:<name of this type>" is removed from its status.
	// Defaults to false.
	// +optional
	Initializer bool `json:"initializer,omitempty"`

	// initializerPermissions are the RBAC rules that hold for the initializer in workspaces that it initializes.
	// If empty, the initializer acts as the user who created the workspace, in that workspace alone.
	// +optional
	InitializerPermissions []rbacv1.PolicyRule `json:"initializerPermissions,omitempty"`

	// terminator says whether a controller outside the server cleans up before workspaces of this type are deleted.
	// The content of such a workspace stays until the terminator "<logical cluster of this type>:<name of this type>" is removed from its status.
	// Defaults to false.
	// +optional
	Terminator bool `json:"terminator,omitempty"`

	// terminatorPermissions are the RBAC rules that hold for the terminator in workspaces that are being deleted.
	// If empty, the terminator acts as the user who created the workspace, in that workspace alone.
	// +optional
	TerminatorPermissions []rbacv1.PolicyRule `json:"terminatorPermissions,omitempty"`

	// extend names other types that workspaces of this type also have.
	// Initializers, terminators and limits of all of these types apply.
	// +optional
	Extend *WorkspaceTypeExtension `json:"extend,omitempty"`

	// additionalWorkspaceLabels are labels that are added to workspaces of this type at creation.
	// A label that the workspace already has is kept.
	// With defaultAPIBindingLifecycle Maintain, existing workspaces get them too.
	// +optional
	AdditionalWorkspaceLabels map[string]string `json:"additionalWorkspaceLabels,omitempty"`

	// defaultChildWorkspaceType is the type of a child workspace that is created without one.
	// +kubebuilder:default={name: "universal", path: "root"}
	// +optional
	DefaultChildWorkspaceType *WorkspaceTypeReference `json:"defaultChildWorkspaceType,omitempty"`

	// limitAllowedChildren restricts the types of child workspaces.
	// If empty, children may have any type.
	// +optional
	LimitAllowedChildren *WorkspaceTypeSelector `json:"limitAllowedChildren,omitempty"`

	// limitAllowedParents restricts the types of the parent workspace.
	// If empty, the parent may have any type.
	// +optional
	LimitAllowedParents *WorkspaceTypeSelector `json:"limitAllowedParents,omitempty"`

	// defaultAPIBindings are the APIExports that workspaces of this type are bound to at creation.
	// +optional
	DefaultAPIBindings []APIExportReference `json:"defaultAPIBindings,omitempty"`

	// defaultAPIBindingLifecycle says whether a change of this type also reaches existing workspaces.
	// With InitializeOnly it does not. With Maintain, existing workspaces get the same bindings and labels as new ones.
	// Defaults to InitializeOnly.
	// +optional
	DefaultAPIBindingLifecycle *APIBindingLifecycle `json:"defaultAPIBindingLifecycle,omitempty"`

	// authenticationConfigurations are WorkspaceAuthenticationConfigurations in the logical cluster of this type.
	// Users of their identity providers can authenticate to workspaces of this type, besides the users that the server authenticates.
	// +optional
	AuthenticationConfigurations []AuthenticationConfigurationReference `json:"authenticationConfigurations,omitempty"`
}

// WorkspaceTypeExtension names the types that a type extends.
type WorkspaceTypeExtension struct {
	// with are the extended types.
	// A type without a path is looked up in the logical cluster of the extending type, then in each ancestor, and last in root.
	// +optional
	With []WorkspaceTypeReference `json:"with,omitempty"`
}

// WorkspaceTypeSelector selects the allowed types.
//
// +kubebuilder:validation:ExactlyOneOf=none;types
type WorkspaceTypeSelector struct {
	// none, if true, allows no workspace.
	// +optional
	None *bool `json:"none,omitempty"`

	// types allows workspaces of these types and of types that extend them.
	// Each entry needs a path.
	// +kubebuilder:validation:MinItems=1
	// +optional
	Types []WorkspaceTypeReference `json:"types,omitempty"`
}

// APIExportReference refers to an APIExport.
type APIExportReference struct {
	// path is the path of the logical cluster that has the APIExport.
	// Defaults to the logical cluster of the type.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Path string `json:"path,omitempty"`

	// export is the name of the APIExport.
	// +required
	Export string `json:"export"`
}

// APIBindingLifecycle says whether a change of a type reaches existing workspaces.
//
// +kubebuilder:validation:Enum=InitializeOnly;Maintain
type APIBindingLifecycle string

const (
	// InitializeOnly leaves existing workspaces unchanged.
	InitializeOnly APIBindingLifecycle = "InitializeOnly"

	// Maintain gives existing workspaces what new workspaces of the type get.
	Maintain APIBindingLifecycle = "Maintain"
)

// AuthenticationConfigurationReference refers to a WorkspaceAuthenticationConfiguration.
type AuthenticationConfigurationReference struct {
	// name is the name of the WorkspaceAuthenticationConfiguration, in the logical cluster of the type.
	// +required
	Name string `json:"name"`
}

// WorkspaceTypeStatus is the observed state of a type.
type WorkspaceTypeStatus struct {
	// conditions are the observed conditions of the type.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// virtualWorkspaces are the virtual workspaces through which the initializer and the terminator of this type reach the workspaces that wait for them.
	// +optional
	VirtualWorkspaces []VirtualWorkspace `json:"virtualWorkspaces,omitempty"`
}

// VirtualWorkspace is the address of a view of the workspaces that wait for an initializer or a terminator.
type VirtualWorkspace struct {
	// url is the base URL of the view, as used for the server in a kubeconfig, to be followed by "/clusters/<name>".
	// +kubebuilder:validation:MinLength=1
	// +required
	URL string `json:"url"`

	// type says which workspaces the view has: initializing or terminating.
	// +optional
	Type VirtualWorkspaceType `json:"type,omitempty"`
}

// VirtualWorkspaceType says which workspaces a VirtualWorkspace has.
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

	// items are the WorkspaceTypes.
	Items []WorkspaceType `json:"items"`
}
