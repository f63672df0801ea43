package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/apis/apis/v1alpha2"
)

// APIExport provides resources to other logical clusters.
// A logical cluster gets the resources when it has an APIBinding to the export.
// The provider reaches their objects in all of these logical clusters through the virtual workspace of the export.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="VirtualWorkspaceURLsReady")].status`,description="Whether the status has the addresses of the virtual workspace"
type APIExport struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the export.
	// +optional
	Spec APIExportSpec `json:"spec,omitempty"`

	// status is the observed state of the export.
	// +optional
	Status v1alpha2.APIExportStatus `json:"status,omitempty"`
}

// APIExportSpec is the desired state of an export.
type APIExportSpec struct {
	// latestResourceSchemas are the names of the APIResourceSchemas that describe the exported resources, in the logical cluster of the export.
	// A logical cluster that binds the export follows later changes of the list.
	// +listType=set
	// +optional
	LatestResourceSchemas []string `json:"latestResourceSchemas,omitempty"`

	// identity is the secret that distinguishes this export from others with the same resources.
	// If empty, a secret with a random key is created.
	// +optional
	Identity *v1alpha2.Identity `json:"identity,omitempty"`

	// maximalPermissionPolicy limits what users of the exported resources may do, whatever their own logical cluster allows.
	// If empty, there is no limit.
	// +optional
	MaximalPermissionPolicy *v1alpha2.MaximalPermissionPolicy `json:"maximalPermissionPolicy,omitempty"`

	// permissionClaims are further resources that the provider asks for access to in logical clusters that bind the export.
	// A claim has an effect only where the APIBinding accepts it.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +optional
	PermissionClaims []PermissionClaim `json:"permissionClaims,omitempty"`
}

// APIExportList is a list of APIExports.
//
// +kubebuilder:object:root=true
type APIExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIExports.
	Items []APIExport `json:"items"`
}
