package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Partition is a group of shards.
// Endpoint slices in its logical cluster use it to list the addresses of these shards only.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.metadata.ownerReferences[*].name`,description="Name of the PartitionSet that the partition belongs to"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Partition struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which shards are in the group.
	// +required
	Spec PartitionSpec `json:"spec"`
}

// PartitionSpec says which shards are in a group.
type PartitionSpec struct {
	// selector selects shards by their labels.
	// If empty, all shards are selected.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// PartitionList is a list of Partitions.
//
// +kubebuilder:object:root=true
type PartitionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the Partitions.
	Items []Partition `json:"items"`
}
