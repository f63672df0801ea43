package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// Placement says where the workloads of a workspace run.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="Pending, Unbound or Bound"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why the placement is not ready"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Placement struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which workloads run where.
	// +optional
	Spec PlacementSpec `json:"spec,omitempty"`

	// status says whether the placement is in use.
	// +optional
	Status PlacementStatus `json:"status,omitempty"`
}

// PlacementSpec says which workloads go where.
type PlacementSpec struct {
	// locationSelectors select Locations of the compute workspace by their labels. A Location
	// is used if at least one of them selects it. The default is all Locations.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	LocationSelectors []metav1.LabelSelector `json:"locationSelectors,omitempty"`

	// namespaceSelector selects the namespaces of the workloads by their labels.
	// The default is all namespaces. If the labels of a namespace change, its workloads move as
	// the Placement says that selects it then.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// strategy says how replicas are divided among targets.
	// +optional
	Strategy PlacementStrategy `json:"strategy,omitempty"`

	// failover says when workloads leave physical clusters that do not answer.
	// +optional
	Failover PlacementFailover `json:"failover,omitzero"`

	// tolerations let workloads run on targets with matching taints. The default tolerates
	// the taint workload.kcp.io/unreachable for 60 seconds, and for 120 seconds for workloads that
	// run at one place only. A workload never leaves the physical cluster that has its data.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// conflict says what happens if a physical cluster already has an object in the place of a
	// copy, which this workspace did not create. Fail: the object is left alone, and the
	// workload reports a conflict. Adopt: the object is taken over, unless others own fields of
	// it that would change. AdoptIfEqual: the object is taken over if none of its fields would
	// change. Overwrite: the object is taken over, and fields are changed whoever owns them.
	// The default is Fail.
	// +kubebuilder:validation:Enum=Fail;Adopt;AdoptIfEqual;Overwrite
	// +optional
	Conflict ConflictPolicy `json:"conflict,omitempty"`

	// deletion says what happens to the copies of a workload that is deleted. Delete: they are
	// deleted. Orphan: they stay in the physical clusters, and no longer belong to the workspace.
	// The default is Delete.
	// +kubebuilder:validation:Enum=Delete;Orphan
	// +optional
	Deletion DeletionPolicy `json:"deletion,omitempty"`

	// suspend keeps all workloads where they are. The default is false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// PlacementFailover says when workloads leave physical clusters that do not answer.
type PlacementFailover struct {
	// requireFencing applies to workloads that run at one place only, such as StatefulSets. If
	// true, such a workload begins elsewhere only after it is known to be stopped: the physical
	// cluster reports it, its agent must have stopped it (see leaseFencing), or an operator
	// confirms it with "kubectl kcp workload fence". If false, the workload begins elsewhere
	// after the time that it tolerates, and may run twice. The default is true.
	// +kubebuilder:default=true
	// +optional
	RequireFencing *bool `json:"requireFencing,omitempty"`

	// leaseFencing makes the agents of physical clusters in mode Pull stop StatefulSets and Jobs
	// after 40 seconds without contact to the server. These then begin elsewhere without an
	// operator. They also stop if the server itself does not answer. The default is false.
	// +optional
	LeaseFencing bool `json:"leaseFencing,omitempty"`
}

// ConflictPolicy says what happens if a physical cluster has an object already.
type ConflictPolicy string

// Conflict policies.
const (
	// Fail leaves the object alone.
	Fail ConflictPolicy = "Fail"
	// Adopt takes the object over, unless others own fields that would change.
	Adopt ConflictPolicy = "Adopt"
	// AdoptIfEqual takes the object over if nothing would change.
	AdoptIfEqual ConflictPolicy = "AdoptIfEqual"
	// Overwrite takes the object over.
	Overwrite ConflictPolicy = "Overwrite"
)

// DeletionPolicy says what happens to the copies of a workload that is deleted.
type DeletionPolicy string

// Deletion policies.
const (
	// Delete deletes the copies.
	Delete DeletionPolicy = "Delete"
	// Orphan leaves the copies in the physical clusters.
	Orphan DeletionPolicy = "Orphan"
)

// PlacementStrategy says how replicas are divided among targets.
type PlacementStrategy struct {
	// type says how many targets run a workload, and which part of it. Divided: replicas are
	// divided among targets. Single: one target runs it. Duplicated: every target runs all of
	// it. Auto: Divided for workloads with replicas. The default is Auto.
	// +kubebuilder:validation:Enum=Auto;Single;Duplicated;Divided
	// +kubebuilder:default=Auto
	// +optional
	Type StrategyType `json:"type,omitempty"`

	// divide configures the division of replicas.
	// +optional
	Divide *Divide `json:"divide,omitempty"`

	// targets limits the number of targets of a workload.
	// +optional
	Targets *TargetRange `json:"targets,omitempty"`
}

// StrategyType says how many targets run a workload.
type StrategyType string

// Types of strategies.
const (
	// Auto means Divided for workloads with replicas.
	Auto StrategyType = "Auto"
	// Single means that one target runs the workload.
	Single StrategyType = "Single"
	// Duplicated means that every target runs all of the workload.
	Duplicated StrategyType = "Duplicated"
	// Divided means that replicas are divided among targets.
	Divided StrategyType = "Divided"
)

// Divide configures the division of replicas.
type Divide struct {
	// minPerTarget is the minimum of replicas of a target that has any. The default is 1.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MinPerTarget *int32 `json:"minPerTarget,omitempty"`

	// maxPerTarget is the maximum of replicas of a target. The default is no maximum.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxPerTarget *int32 `json:"maxPerTarget,omitempty"`
}

// TargetRange limits the number of targets of a workload.
type TargetRange struct {
	// max is the maximum of targets. The default is no maximum.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Max *int32 `json:"max,omitempty"`
}

// PlacementStatus says whether a placement is in use.
type PlacementStatus struct {
	// phase is Pending while no Location is selected, Unbound while no workload is placed, and
	// otherwise Bound.
	// +optional
	Phase PlacementPhase `json:"phase,omitempty"`

	// conditions are the latest observations of the placement.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// PlacementPhase says whether a placement is in use.
type PlacementPhase string

// Phases of Placements.
const (
	// Pending means that no Location is selected.
	Pending PlacementPhase = "Pending"
	// Unbound means that no workload is placed.
	Unbound PlacementPhase = "Unbound"
	// Bound means that workloads are placed.
	Bound PlacementPhase = "Bound"
)

// Reasons why a Placement is not ready.
const (
	// NoLocation means that no Location is selected.
	NoLocation = "LocationNotFound"
	// Shadowed means that an older Placement selects all its namespaces.
	Shadowed = "Shadowed"
)

// PlacementList is a list of Placements.
//
// +kubebuilder:object:root=true
type PlacementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Placement `json:"items"`
}
