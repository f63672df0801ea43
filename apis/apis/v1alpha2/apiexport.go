package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// APIExport provides resources to other logical clusters.
// A logical cluster gets the resources when it has an APIBinding to the export.
// The provider reaches their objects in all of these logical clusters through the virtual workspace of the export.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIExport struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the export.
	// +optional
	Spec APIExportSpec `json:"spec,omitempty"`

	// status is the observed state of the export.
	// +optional
	Status APIExportStatus `json:"status,omitempty"`
}

// APIExportSpec is the desired state of an export.
type APIExportSpec struct {
	// resources are the exported resources.
	// A logical cluster that binds the export follows later changes of the list.
	// +listType=map
	// +listMapKey=name
	// +listMapKey=group
	// +optional
	Resources []ResourceSchema `json:"resources,omitempty"`

	// identity is the secret that distinguishes this export from others with the same resources.
	// If empty, a secret with a random key is created.
	// +optional
	Identity *Identity `json:"identity,omitempty"`

	// maximalPermissionPolicy limits what users of the exported resources may do, whatever their own logical cluster allows.
	// If empty, there is no limit.
	// +optional
	MaximalPermissionPolicy *MaximalPermissionPolicy `json:"maximalPermissionPolicy,omitempty"`

	// permissionClaims are further resources that the provider asks for access to in logical clusters that bind the export.
	// A claim has an effect only where the APIBinding accepts it.
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +optional
	PermissionClaims []PermissionClaim `json:"permissionClaims,omitempty"`
}

// ResourceSchema is an exported resource.
//
// +kubebuilder:validation:XValidation:rule="has(self.storage) && has(self.storage.native) ? !has(self.schema) || size(self.schema) == 0 : has(self.schema)",message="schema must be set, unless storage.native is set: then the server has the schema"
type ResourceSchema struct {
	// name is the plural name of the resource, such as "widgets".
	// +required
	Name string `json:"name"`

	// group is the API group of the resource.
	// Empty for the core group.
	// +required
	Group string `json:"group"`

	// schema is the name of the APIResourceSchema that describes the resource, in the logical cluster of the export.
	// Required, unless storage.native is set.
	// +optional
	Schema string `json:"schema,omitempty"`

	// storage says where the objects of the resource are stored.
	// Defaults to the logical clusters that bind the export.
	// +kubebuilder:default={crd: {}}
	// +optional
	Storage ResourceStorage `json:"storage,omitzero"`
}

// ResourceStorage says where the objects of an exported resource are stored.
//
// +kubebuilder:validation:XValidation:rule="has(self.crd) ? !has(self.virtual) && !has(self.native) : has(self.virtual) != has(self.native)",message="exactly one of crd, virtual and native must be set"
type ResourceStorage struct {
	// crd stores the objects in the logical clusters that bind the export, like custom resources.
	// +optional
	CRD *CRDStorage `json:"crd,omitempty"`

	// virtual forwards requests for the objects to a virtual workspace.
	// +optional
	Virtual *VirtualStorage `json:"virtual,omitempty"`

	// native serves a kind of Kubernetes that the server has compiled in, such as Deployment, in the logical clusters that bind the export.
	// The server refuses resources that it does not offer, and lists those that it offers.
	// +optional
	Native *NativeStorage `json:"native,omitempty"`
}

// NativeStorage stores the objects of a kind of Kubernetes in the logical clusters that bind the export.
// Their schema is that of the server.
type NativeStorage struct{}

// CRDStorage stores the objects of a resource like custom resources.
type CRDStorage struct{}

// VirtualStorage forwards requests for the objects of a resource to a virtual workspace.
type VirtualStorage struct {
	// reference is the object whose status.endpoints has the URLs of the virtual workspace.
	// It is cluster-scoped, in the logical cluster of the export.
	// +required
	Reference corev1.TypedLocalObjectReference `json:"reference"`

	// identityHash is the identity of the resource in the virtual workspace.
	// +required
	IdentityHash string `json:"identityHash"`
}

// Identity is the secret whose possession proves the identity of a provider.
type Identity struct {
	// secretRef is the Secret with the key, in the logical cluster of this object.
	// The SHA-256 hash of its data entry "key" is the identity.
	// +optional
	SecretRef *corev1.SecretReference `json:"secretRef,omitempty"`
}

// MaximalPermissionPolicy limits what users of exported resources may do.
//
// +kubebuilder:validation:XValidation:rule="has(self.local)",message="local must be set"
type MaximalPermissionPolicy struct {
	// local takes the limit from RBAC in the logical cluster of the export.
	// A request is allowed only if RBAC there allows it, too.
	// RBAC there names users and groups with the prefix "apis.kcp.io:binding:".
	// +optional
	Local *LocalPolicy `json:"local,omitempty"`
}

// ConsumerPrefix begins the names of users and groups in the RBAC with which a provider limits what
// consumers may do with its resources.
const ConsumerPrefix = "apis.kcp.io:binding:"

// LocalPolicy takes a limit from RBAC in the logical cluster of the export.
type LocalPolicy struct{}

// APIExportStatus is the observed state of an export.
type APIExportStatus struct {
	// identityHash is the identity of the export: the SHA-256 hash of the key in its secret, in hexadecimal.
	// It never changes.
	// +optional
	IdentityHash string `json:"identityHash,omitempty"`

	// conditions are the observed conditions of the export.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// virtualWorkspaces is deprecated and stays empty.
	// APIExportEndpointSlices have the addresses of the virtual workspace of the export.
	// +optional
	VirtualWorkspaces []VirtualWorkspace `json:"virtualWorkspaces,omitempty"`
}

// VirtualWorkspace is an address of the virtual workspace of an export.
type VirtualWorkspace struct {
	// url is the base URL of the virtual workspace, as used for the server in a kubeconfig, to be followed by "/clusters/<name>".
	// +kubebuilder:validation:MinLength=1
	// +required
	URL string `json:"url"`
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
