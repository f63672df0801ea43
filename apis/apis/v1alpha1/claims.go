package v1alpha1

import (
	"github.com/unforked/kcp/apis/apis/v1alpha2"
)

// PermissionClaim asks for access to objects of one resource in the logical clusters that bind an APIExport, with all verbs.
//
// +kubebuilder:validation:XValidation:rule="(has(self.all) && self.all) != (has(self.resourceSelector) && size(self.resourceSelector) > 0)",message="either all must be true or resourceSelector must be set"
type PermissionClaim struct {
	// group is the API group of the claimed resource.
	// Empty for the core group, which is the default.
	// +kubebuilder:default=""
	// +kubebuilder:validation:Pattern=`^(|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`
	// +optional
	Group string `json:"group"`

	// resource is the plural name of the claimed resource, such as "configmaps".
	// +kubebuilder:validation:Pattern=`^[a-z][-a-z0-9]*[a-z0-9]$`
	// +required
	Resource string `json:"resource"`

	// all, if true, claims all objects of the resource.
	// Defaults to false.
	// +optional
	All bool `json:"all,omitempty"`

	// resourceSelector claims the objects that at least one entry selects.
	// +optional
	ResourceSelector []ResourceSelector `json:"resourceSelector,omitempty"`

	// identityHash is the identity of the APIExport that the resource comes from.
	// Empty for resources that no APIExport provides.
	// +optional
	IdentityHash string `json:"identityHash,omitempty"`
}

// ResourceSelector selects objects by name, by namespace, or by both.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) || has(self.namespace)",message="name or namespace must be set"
type ResourceSelector struct {
	// name is the name of the object.
	// If empty, objects of any name are selected.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-_.:a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`

	// namespace is the namespace of the object.
	// If empty, objects of any namespace and cluster-scoped objects are selected.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// AcceptablePermissionClaim is the answer to a claim.
type AcceptablePermissionClaim struct {
	PermissionClaim `json:",inline"`

	// state says whether the claim is accepted: Accepted or Rejected.
	// +required
	State v1alpha2.ClaimState `json:"state"`
}
