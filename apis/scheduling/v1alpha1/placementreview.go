package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PlacementReview asks where the workloads of a workspace run, why, and where they would run if some
// physical clusters were lost, cordoned or added. The server answers its creation, and does not
// store it.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=kcp
type PlacementReview struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the question.
	// +optional
	Spec PlacementReviewSpec `json:"spec,omitempty"`

	// status is the answer. The server sets it.
	// +optional
	Status PlacementReviewStatus `json:"status,omitempty"`
}

// PlacementReviewSpec names the workloads and the assumptions of a review.
type PlacementReviewSpec struct {
	// workloads are the workloads to review. The default is all workloads of the workspace.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	Workloads []ReviewedReference `json:"workloads,omitempty"`

	// assume says what would be different.
	// +optional
	Assume Assumptions `json:"assume,omitempty"`
}

// ReviewedReference names a workload.
type ReviewedReference struct {
	// group of the resource; empty for core.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Group string `json:"group,omitempty"`

	// resource is the plural name, such as deployments.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Resource string `json:"resource"`

	// namespace of the workload.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`

	// name of the workload.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// Assumptions say what would be different.
type Assumptions struct {
	// down are Locations all of whose physical clusters do not answer any more.
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	Down []string `json:"down,omitempty"`

	// cordoned are Locations whose physical clusters take no new replicas.
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	Cordoned []string `json:"cordoned,omitempty"`

	// downTargets are SyncTargets of the compute workspace that do not answer any more. Only
	// users who may list them there may name them.
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	DownTargets []string `json:"downTargets,omitempty"`

	// cordonedTargets are SyncTargets of the compute workspace that take no new replicas. Only
	// users who may list them there may name them.
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	CordonedTargets []string `json:"cordonedTargets,omitempty"`

	// added are physical clusters that do not exist yet. They are ready, have no taints, and accept
	// all workloads.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=location
	// +optional
	Added []AddedClusters `json:"added,omitempty"`
}

// AddedClusters are physical clusters of a Location that do not exist yet.
type AddedClusters struct {
	// location that has the physical clusters. Another Location has them, too, if it selects the
	// labels that this one asks for.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Location string `json:"location"`

	// clusters is their number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	// +optional
	Clusters int32 `json:"clusters,omitempty"`
}

// PlacementReviewStatus answers a PlacementReview.
type PlacementReviewStatus struct {
	// workloads are the answers, one for each workload.
	// +listType=atomic
	// +optional
	Workloads []ReviewedWorkload `json:"workloads,omitempty"`

	// omitted is the number of further workloads, which are too many for one answer.
	// +optional
	Omitted int32 `json:"omitted,omitempty"`

	// held is true if so many physical clusters would not answer at once that the server itself
	// would be the likely cause. Then no workload leaves a cluster because it does not answer.
	// +optional
	Held bool `json:"held,omitempty"`
}

// ReviewedWorkload says where a workload runs.
type ReviewedWorkload struct {
	ReviewedReference `json:",inline"`

	// kind of the workload, such as Deployment.
	// +optional
	Kind string `json:"kind,omitempty"`

	// placement that applies. It is empty if none selects the workload.
	// +optional
	Placement string `json:"placement,omitempty"`

	// replicas that the workload wants. It is empty for workloads without replicas.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// moved is the number of replicas that other physical clusters would run. For a workload
	// without replicas it is the number of its copies.
	// +optional
	Moved int32 `json:"moved,omitempty"`

	// reason says in one word why the workload would not be fully placed. It is empty if the
	// workload would be fully placed.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message explains the reason, for people.
	// +optional
	Message string `json:"message,omitempty"`

	// locations say what each Location has, would have, or why it has nothing.
	// +listType=atomic
	// +optional
	Locations []ReviewedLocation `json:"locations,omitempty"`
}

// ReviewedLocation is one physical cluster, or several of a Location that are alike.
type ReviewedLocation struct {
	// location through which the workload may use the physical clusters. It is empty if the
	// Placement selects none that has them.
	// +optional
	Location string `json:"location,omitempty"`

	// target is the name of the SyncTarget. It is set only for users who may list the
	// SyncTargets of the compute workspace.
	// +optional
	Target string `json:"target,omitempty"`

	// clusters is the number of physical clusters.
	// +optional
	Clusters int32 `json:"clusters,omitempty"`

	// added is true if the physical clusters do not exist yet, but are assumed to.
	// +optional
	Added bool `json:"added,omitempty"`

	// replicas that are assigned now.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// available replicas that are reported now.
	// +optional
	Available int32 `json:"available,omitempty"`

	// outdated is true if the physical clusters have not applied the present generation of the workload, or their
	// controllers have not seen it.
	// +optional
	Outdated bool `json:"outdated,omitempty"`

	// phase of the part now; empty if there is none.
	// +optional
	Phase string `json:"phase,omitempty"`

	// nextReplicas are those that would be assigned at the end.
	// +optional
	NextReplicas *int32 `json:"nextReplicas,omitempty"`

	// nextPhase is the phase of the part at the end; empty if there is none.
	// +optional
	NextPhase string `json:"nextPhase,omitempty"`

	// reason says in one word why the physical clusters take no new replicas, or give away those
	// that they have. It is empty if they take replicas.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// PlacementReviewList is a list of PlacementReviews. It is always empty.
//
// +kubebuilder:object:root=true
type PlacementReviewList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []PlacementReview `json:"items"`
}
