package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TargetStatus is what one target reports about one workload. The agent of the target alone
// writes it. It has the namespace of the workload.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Namespaced,path=targetstatuses,singular=targetstatus,categories=kcp
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.workload.kind`,description="Kind of the workload"
// +kubebuilder:printcolumn:name="Workload",type=string,JSONPath=`.spec.workload.name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.spec.location`,description="Location of the target"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`,description="Why the part is not applied"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TargetStatus struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the report.
	// +required
	Spec TargetStatusSpec `json:"spec"`
}

// TargetStatusSpec is the report of a target about a workload.
type TargetStatusSpec struct {
	// key identifies the target.
	// +required
	Key string `json:"key"`

	// location of the target.
	// +optional
	Location string `json:"location,omitempty"`

	// workload is the object of the report.
	// +required
	Workload WorkloadReference `json:"workload"`

	// generation of the workload that is applied at the target.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// replicas is the part of the target that is applied.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// targetGeneration is the generation of the object at the target after it was applied.
	// Another generation at the target means drift. For kinds without generations it is a hash
	// of the content of the object.
	// +optional
	TargetGeneration int64 `json:"targetGeneration,omitempty"`

	// reported is the status of the object at the target. It is about the applied
	// generation, unless observed is false.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +optional
	Reported *runtime.RawExtension `json:"reported,omitempty"`

	// observed is true if the controllers of the target have seen the applied generation.
	// +optional
	Observed bool `json:"observed,omitempty"`

	// stopsWithinSeconds is set if the agent stops the workload after its lease has run out. It is the
	// longest grace period of the pods that may run at the target. It is empty if the workload runs on.
	// +kubebuilder:validation:Minimum=0
	// +optional
	StopsWithinSeconds *int64 `json:"stopsWithinSeconds,omitempty"`

	// missing are objects that the workload refers to and that the target does not have, each with
	// the reason.
	// +kubebuilder:validation:MaxItems=128
	// +listType=atomic
	// +optional
	Missing []string `json:"missing,omitempty"`

	// reason says in one word why the part is not applied. It is empty if the part is applied.
	// +optional
	Reason string `json:"reason,omitempty"`

	// refusedGeneration is the generation of the workload that the target refuses for the reason. It is empty if the
	// target may have an object that is not known.
	// +optional
	RefusedGeneration int64 `json:"refusedGeneration,omitempty"`

	// message explains the reason, for people.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
}

// TargetStatusList is a list of TargetStatuses.
//
// +kubebuilder:object:root=true
type TargetStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []TargetStatus `json:"items"`
}
