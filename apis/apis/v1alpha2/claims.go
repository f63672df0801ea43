package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PermissionClaim asks for access to objects of one resource in the logical clusters that bind an APIExport.
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

	// verbs are the claimed verbs, such as "get".
	// "*" stands for all verbs.
	// +kubebuilder:validation:MinItems=1
	// +listType=set
	// +required
	Verbs []string `json:"verbs"`

	// identityHash is the identity of the APIExport that the resource comes from.
	// Empty for resources that no APIExport provides, which is the default.
	// +kubebuilder:default=""
	// +optional
	IdentityHash string `json:"identityHash"`

	// defaultSelector selects the objects that are accessible in logical clusters that accept the claim by default.
	// If empty, all objects are.
	// +structType=atomic
	// +optional
	DefaultSelector *PermissionClaimSelector `json:"defaultSelector,omitempty"`
}

// PermissionClaimSelector selects objects of a claimed resource: all of them, or those with certain labels.
//
// +structType=atomic
type PermissionClaimSelector struct {
	metav1.LabelSelector `json:",inline"`

	// matchAll, if true, selects all objects.
	// matchLabels and matchExpressions must be empty then.
	// Defaults to false.
	// +optional
	MatchAll bool `json:"matchAll,omitempty"`
}

// ScopedPermissionClaim is a claim on the objects that a selector selects.
type ScopedPermissionClaim struct {
	PermissionClaim `json:",inline"`

	// selector selects the objects that the claim gives access to.
	// Either matchAll is true, or matchLabels or matchExpressions are set.
	// +structType=atomic
	// +required
	Selector PermissionClaimSelector `json:"selector"`
}

// AcceptablePermissionClaim is the answer to a claim.
type AcceptablePermissionClaim struct {
	ScopedPermissionClaim `json:",inline"`

	// state says whether the claim is accepted: Accepted or Rejected.
	// +required
	State ClaimState `json:"state"`
}

// ClaimState says whether a claim is accepted.
//
// +kubebuilder:validation:Enum=Accepted;Rejected
type ClaimState string

const (
	// ClaimAccepted gives the provider of the APIExport the access that it claims.
	ClaimAccepted ClaimState = "Accepted"

	// ClaimRejected refuses the access.
	ClaimRejected ClaimState = "Rejected"
)
