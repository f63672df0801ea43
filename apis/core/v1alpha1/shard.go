package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// Shard describes the servers on one etcd, which host a part of all logical clusters.
// All Shards are in the logical cluster root. Each shard creates its own.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.metadata.labels['region']`,description="Region that the shard is in"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.baseURL`,description="Where other shards reach the shard"
// +kubebuilder:printcolumn:name="External URL",type=string,JSONPath=`.spec.externalURL`,description="Where users reach the workspaces of the shard"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Shard struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec has the addresses of the shard.
	// +optional
	Spec ShardSpec `json:"spec,omitempty"`

	// status is the observed state of the shard.
	// +optional
	Status ShardStatus `json:"status,omitempty"`
}

// ShardSpec has the addresses of a shard.
type ShardSpec struct {
	// baseURL is the URL at which other shards and front proxies reach the shard.
	// +kubebuilder:validation:Format=uri
	// +kubebuilder:validation:MinLength=1
	// +required
	BaseURL string `json:"baseURL"`

	// externalURL is the URL at which users reach the workspaces of the shard, such as that of a front proxy.
	// Defaults to baseURL.
	// +kubebuilder:validation:Format=uri
	// +kubebuilder:validation:MinLength=1
	// +optional
	ExternalURL string `json:"externalURL,omitempty"`

	// virtualWorkspaceURL is the URL at which users reach the virtual workspaces of the shard.
	// Defaults to baseURL.
	// +kubebuilder:validation:Format=uri
	// +kubebuilder:validation:MinLength=1
	// +optional
	VirtualWorkspaceURL string `json:"virtualWorkspaceURL,omitempty"`
}

// ShardStatus is the observed state of a shard.
type ShardStatus struct {
	// capacity is how much of each resource the shard has.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// conditions are the observed conditions of the shard.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// ShardList is a list of Shards.
//
// +kubebuilder:object:root=true
type ShardList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the Shards.
	Items []Shard `json:"items"`
}
