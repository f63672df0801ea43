package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// APIExportRollout gives new schemas to the consumers of an APIExport in rings, one after the other.
// Before each ring, the objects of its consumers are checked, and the rollout stops if a schema breaks them.
// At the end it writes the schemas into the APIExport.
// If it is deleted before the end, its consumers return to the schemas of the APIExport. It is not removed until their objects allow that.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Export",type=string,JSONPath=`.spec.export`
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.doneRings`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIExportRollout struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the rollout.
	// +required
	Spec APIExportRolloutSpec `json:"spec"`

	// status is the observed state of the rollout.
	// +optional
	Status APIExportRolloutStatus `json:"status,omitempty"`
}

// APIExportRolloutSpec is the desired state of a rollout.
type APIExportRolloutSpec struct {
	// export is the name of the APIExport in the same logical cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="export is immutable; create another APIExportRollout"
	// +required
	Export string `json:"export"`

	// schemas are the names of the new APIResourceSchemas, in the same logical cluster, at most one for each resource of the APIExport.
	// If they change, the rollout begins again with the first ring. Consumers keep their schemas until their ring gets the new ones.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=20
	// +listType=set
	// +required
	Schemas []string `json:"schemas"`

	// rings are the rings before the last one, which has all remaining consumers.
	// A consumer belongs to the first ring that selects it.
	// A change has no effect on rings that are done, except for the pause.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	Rings []RolloutRing `json:"rings,omitempty"`

	// maxBroken is the maximum of objects of one ring that the schemas may break.
	// Defaults to 0.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxBroken int64 `json:"maxBroken,omitempty"`

	// attempt is any number.
	// A change of it, or of another field, lets a rollout that has stopped check the ring again.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
}

// RolloutRing is a set of consumers that get new schemas at the same time.
//
// +kubebuilder:validation:XValidation:rule="has(self.percent) || has(self.clusters) || has(self.selector)",message="a ring has percent, clusters, a selector or several of these"
type RolloutRing struct {
	// name is the name of the ring in the status.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`

	// clusters are the names of logical clusters in the ring.
	// +kubebuilder:validation:MaxItems=200
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Clusters []string `json:"clusters,omitempty"`

	// selector selects logical clusters by the labels that their APIBindings to the APIExport have when the check of the ring begins.
	// It must not be empty, and selects at most 1000.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// percent is the share of all consumers that are in this ring or one before it.
	// A hash of the name of the logical cluster decides, so that the order of consumers is the same in all rollouts of an APIExport.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	Percent int32 `json:"percent,omitempty"`

	// pause is the time from the end of this ring to the beginning of the next.
	// Defaults to none.
	// +optional
	Pause *metav1.Duration `json:"pause,omitempty"`
}

// RolloutStage is a ring that is done.
type RolloutStage struct {
	// schemas are the schemas of its consumers.
	// +listType=atomic
	// +required
	Schemas []string `json:"schemas"`

	// ring selects its consumers.
	// +required
	Ring RolloutRing `json:"ring"`

	// selected are the logical clusters that the selector of the ring selected, in order.
	// Later changes of labels have no effect on the ring.
	// +listType=set
	// +optional
	Selected []string `json:"selected,omitempty"`

	// time is when it was done.
	// +required
	Time metav1.Time `json:"time"`
}

// RolloutPhase is a one-word summary of a rollout.
type RolloutPhase string

const (
	// RolloutWaiting waits for another rollout of the APIExport, or for what is missing.
	RolloutWaiting RolloutPhase = "Waiting"
	// RolloutChecking checks the objects of the next ring.
	RolloutChecking RolloutPhase = "Checking"
	// RolloutPaused waits for the end of the pause after a ring.
	RolloutPaused RolloutPhase = "Paused"
	// RolloutStopped found broken objects.
	RolloutStopped RolloutPhase = "Stopped"
	// RolloutReturning is deleted, and checks whether its consumers can return to the schemas of the APIExport.
	RolloutReturning RolloutPhase = "Returning"
	// RolloutCompleted has written the schemas into the APIExport. It has no effect any more.
	RolloutCompleted RolloutPhase = "Completed"
)

// RemainingRing is the name of the last ring, which has all remaining consumers.
const RemainingRing = "remaining"

// RolloutFinalizer keeps a rollout until its consumers can return to the schemas of the APIExport.
const RolloutFinalizer = "apis.kcp.io/apiexportrollout"

const (
	// RolloutProgressing says whether the rollout goes on.
	RolloutProgressing conditions.Type = "Progressing"
	// RolloutSchemasBreakObjects is the reason of a rollout that has stopped.
	RolloutSchemasBreakObjects = "SchemasBreakObjects"
	// RolloutNotPossible is the reason of a rollout that lacks something.
	RolloutNotPossible = "NotPossible"
	// RolloutOther is the reason of a rollout that waits for another one.
	RolloutOther = "OtherRollout"
)

// APIExportRolloutStatus is the observed state of a rollout.
type APIExportRolloutStatus struct {
	// phase summarizes the state.
	// +optional
	Phase RolloutPhase `json:"phase,omitempty"`

	// stages are the rings that are done, the last one at the end, at most 32.
	// A consumer has the schemas of the last stage that selects it, or otherwise those of the APIExport.
	// +listType=atomic
	// +optional
	Stages []RolloutStage `json:"stages,omitempty"`

	// doneRings is the number of rings that have the schemas of the spec.
	// +optional
	DoneRings int32 `json:"doneRings,omitempty"`

	// stoppedGeneration is the generation of the spec with which the rollout stopped.
	// +optional
	StoppedGeneration int64 `json:"stoppedGeneration,omitempty"`

	// checked is the number of objects of the ring that was checked last.
	// +optional
	Checked int64 `json:"checked,omitempty"`

	// broken is the number of objects of that ring that the schemas break.
	// +optional
	Broken int64 `json:"broken,omitempty"`

	// causes count the broken objects by field, at most ten: "<resource> <field>: <reason> in <number> objects".
	// "kubectl kcp schema check" names the objects.
	// +listType=atomic
	// +optional
	Causes []string `json:"causes,omitempty"`

	// conditions are the observed conditions of the rollout.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// APIExportRolloutList is a list of APIExportRollouts.
//
// +kubebuilder:object:root=true
type APIExportRolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIExportRollouts.
	Items []APIExportRollout `json:"items"`
}
