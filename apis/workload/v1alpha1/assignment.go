package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Assignment is the decision which targets run a workload. The scheduler alone writes it.
// It has the namespace of the workload, and is named after its resource and name.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Namespaced,categories=kcp
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.workload.kind`,description="Kind of the workload"
// +kubebuilder:printcolumn:name="Workload",type=string,JSONPath=`.spec.workload.name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.spec.reason`,description="Why the workload is not fully placed"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Assignment struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the decision.
	// +required
	Spec AssignmentSpec `json:"spec"`
}

// AssignmentSpec is a decision of the scheduler.
type AssignmentSpec struct {
	// workload is the object that is placed.
	// +required
	Workload WorkloadReference `json:"workload"`

	// placement is the Placement that was applied. It is empty if none selects the workload.
	// +optional
	Placement string `json:"placement,omitempty"`

	// replicas is the number of replicas that the workload wants. It is empty for workloads
	// without replicas.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// targets are the targets that have or had a part of the workload.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=key
	// +optional
	Targets []AssignedTarget `json:"targets,omitempty"`

	// conflict says what happens if a physical cluster has an object of the name already, see
	// Placement. The default is Fail.
	// +optional
	Conflict string `json:"conflict,omitempty"`

	// deletion says what happens to the copies of a workload that is deleted, see Placement. The
	// default is Delete.
	// +optional
	Deletion string `json:"deletion,omitempty"`

	// fencing says what the agent of a target does with the workload while it has no contact to
	// the server. Lease: it stops the workload when its lease has run out. The default is that the
	// workload runs on.
	// +optional
	Fencing string `json:"fencing,omitempty"`

	// rejections are the targets that did not accept the workload. The workload does not begin there
	// again until its generation changes.
	// +optional
	Rejections *Rejections `json:"rejections,omitempty"`

	// reason says in one word why the workload is not fully placed. It is empty if the workload
	// is fully placed.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message explains the reason, for people.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
}

// LeaseFencing means that agents stop a workload when their lease has run out.
const LeaseFencing = "Lease"

// MaxRejections is the number of rejections after which a workload that no target has accepted is offered to no further
// target.
const MaxRejections = 8

// Rejections are targets that did not accept a workload: its kind has another schema there, or a policy of the
// physical cluster refuses it.
type Rejections struct {
	// generation of the workload.
	// +required
	Generation int64 `json:"generation"`

	// keys identify the targets.
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	// +required
	Keys []string `json:"keys"`
}

// WorkloadReference names a workload in the namespace of the referring object.
type WorkloadReference struct {
	// group of the resource; empty for core.
	// +optional
	Group string `json:"group,omitempty"`

	// resource is the plural name, such as deployments.
	// +required
	Resource string `json:"resource"`

	// kind of the workload, such as Deployment.
	// +required
	Kind string `json:"kind"`

	// name of the workload.
	// +required
	Name string `json:"name"`

	// uid of the workload.
	// +required
	UID string `json:"uid"`
}

// AssignedTarget is the part of one target in an Assignment.
type AssignedTarget struct {
	// key identifies the target.
	// +required
	Key string `json:"key"`

	// location through which the target was chosen.
	// +optional
	Location string `json:"location,omitempty"`

	// replicas is the part of the target. It is empty for workloads without replicas.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// phase says whether the target runs its part. Active: the target runs it. Evicting: the
	// target runs it until replacements are available elsewhere. Removing: the target removes
	// it.
	// +kubebuilder:validation:Enum=Active;Evicting;Removing
	// +required
	Phase AssignmentPhase `json:"phase"`

	// reason says in one word why the part is being evicted or removed.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// AssignmentPhase says whether a target runs its part of a workload.
type AssignmentPhase string

// Phases of parts.
const (
	// Active means that the target runs its part.
	Active AssignmentPhase = "Active"
	// Evicting means that the target runs its part until replacements are available.
	Evicting AssignmentPhase = "Evicting"
	// Removing means that the target removes its part.
	Removing AssignmentPhase = "Removing"
)

// AssignmentList is a list of Assignments.
//
// +kubebuilder:object:root=true
type AssignmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Assignment `json:"items"`
}
