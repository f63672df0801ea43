package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DescriptionAnnotation on an APIExport describes the export to the users who may bind it.
const DescriptionAnnotation = "kubernetes.io/description"

// BindableExport is an APIExport that a user may bind. The server returns it from a virtual
// workspace and never stores it.
//
// +kubebuilder:object:generate=false
type BindableExport struct {
	// path is the path of the workspace with the APIExport, as for an APIBinding.
	Path string `json:"path"`

	// name is the name of the APIExport.
	Name string `json:"name"`

	// cluster is the name of the logical cluster with the APIExport.
	Cluster string `json:"cluster"`

	// description is the text of the annotation kubernetes.io/description.
	// It has at most 1024 bytes.
	Description string `json:"description,omitempty"`

	// resources are the resources of the APIExport, at most 100.
	Resources []BindableResource `json:"resources,omitempty"`

	// permissionClaims are the resources of a consumer that the provider claims, as "<resource>.<group>", at most 100.
	PermissionClaims []string `json:"permissionClaims,omitempty"`
}

// BindableResource is a resource of an APIExport.
//
// +kubebuilder:object:generate=false
type BindableResource struct {
	// group is the API group, empty for the core group.
	Group string `json:"group"`

	// resource is the plural name.
	Resource string `json:"resource"`

	// versions are the served versions.
	Versions []string `json:"versions,omitempty"`
}

// BindableExportList is a list of APIExports that a user may bind.
//
// +kubebuilder:object:generate=false
type BindableExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIExports by path and name.
	Items []BindableExport `json:"items"`
}
