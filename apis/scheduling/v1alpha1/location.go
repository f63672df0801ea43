package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Location is a set of physical clusters that consumers may choose.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableInstances`,description="Number of targets that take workloads"
// +kubebuilder:printcolumn:name="Instances",type=integer,JSONPath=`.status.instances`,description="Number of targets"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Location struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec selects the physical clusters.
	// +optional
	Spec LocationSpec `json:"spec,omitempty"`

	// status counts the physical clusters.
	// +optional
	Status LocationStatus `json:"status,omitempty"`
}

// LocationSpec selects the physical clusters of a Location.
type LocationSpec struct {
	// description of the location, for people.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// instanceSelector selects SyncTargets of the workspace by their labels.
	// The default is all of them.
	// +optional
	InstanceSelector *metav1.LabelSelector `json:"instanceSelector,omitempty"`
}

// LocationStatus counts the physical clusters of a Location.
type LocationStatus struct {
	// instances is the number of SyncTargets.
	// +optional
	Instances *int32 `json:"instances,omitempty"`

	// availableInstances is the number of SyncTargets that take workloads.
	// +optional
	AvailableInstances *int32 `json:"availableInstances,omitempty"`
}

// LocationList is a list of Locations.
//
// +kubebuilder:object:root=true
type LocationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Location `json:"items"`
}
