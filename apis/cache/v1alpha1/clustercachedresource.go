package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// ClusterCachedResource publishes the objects of one resource in its logical cluster, for reading by consumers of an APIExport.
// The resource must be cluster-scoped and may not be built in.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=`.spec.resource`,description="Plural name of the resource"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterCachedResource struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is published.
	// +required
	Spec ClusterCachedResourceSpec `json:"spec"`

	// status is the observed state of the published objects.
	// +optional
	Status ClusterCachedResourceStatus `json:"status,omitempty"`
}

// ClusterCachedResourceSpec says what is published.
type ClusterCachedResourceSpec struct {
	// group is the API group of the resource.
	// Empty for the core group.
	// +kubebuilder:validation:Pattern=`^(|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`
	// +optional
	Group string `json:"group,omitempty"`

	// version is the version of the resource.
	// +optional
	Version string `json:"version,omitempty"`

	// resource is the plural name of the resource, such as "widgets".
	// +kubebuilder:validation:Pattern=`^[a-z][-a-z0-9]*[a-z0-9]$`
	// +required
	Resource string `json:"resource"`

	// identity is the secret that distinguishes these objects from those of the same resource elsewhere.
	// If empty, a secret with a random key is created.
	// +optional
	Identity *apis.Identity `json:"identity,omitempty"`

	// labelSelector selects the objects to publish.
	// If empty, all objects are published.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// ClusterCachedResourceStatus is the observed state of the published objects.
type ClusterCachedResourceStatus struct {
	// identityHash is the identity of the published objects: the SHA-256 hash of the key in the secret, in hexadecimal.
	// +optional
	IdentityHash string `json:"identityHash,omitempty"`

	// resourceCounts are the numbers of objects.
	// +optional
	ResourceCounts *ResourceCounts `json:"resourceCounts,omitempty"`

	// phase is the phase of the life cycle.
	// Objects are published while it is Ready.
	// +kubebuilder:default=Initializing
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// conditions are the observed conditions of the published objects.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// ResourceCounts are the numbers of objects.
type ResourceCounts struct {
	// cache is the number of published objects.
	// +required
	Cache int `json:"cache"`

	// local is the same number: objects are not copied.
	// +required
	Local int `json:"local"`
}

// A Phase is a phase of the life cycle of a ClusterCachedResource.
//
// +kubebuilder:validation:Enum=Scheduling;Initializing;Ready;Deleting;Deleted
type Phase string

const (
	// PhaseScheduling precedes PhaseInitializing in the existing kcp. This server does not
	// set it.
	PhaseScheduling Phase = "Scheduling"

	// PhaseInitializing is the phase before objects are published.
	PhaseInitializing Phase = "Initializing"

	// PhaseReady is the phase in which objects are published.
	PhaseReady Phase = "Ready"

	// PhaseDeleting is the phase after a deletion is requested and before all copies are gone.
	PhaseDeleting Phase = "Deleting"

	// PhaseDeleted is the phase when all copies are gone.
	PhaseDeleted Phase = "Deleted"
)

// ClusterCachedResourceList is a list of ClusterCachedResources.
//
// +kubebuilder:object:root=true
type ClusterCachedResourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the ClusterCachedResources.
	Items []ClusterCachedResource `json:"items"`
}
