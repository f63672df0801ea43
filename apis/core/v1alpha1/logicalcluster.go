package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// LogicalCluster is the record that a logical cluster keeps of itself: who it belongs to, how far its life has come, and where it is served.
// There is one in each, named "cluster".
// It is made and removed together with its owner, usually a Workspace in the logical cluster above.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="How far the life of the logical cluster has come"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.URL`,description="Where the logical cluster is served"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="a logical cluster has one LogicalCluster, and its name is \"cluster\""
type LogicalCluster struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the logical cluster is to be.
	// +kubebuilder:default={}
	// +optional
	Spec LogicalClusterSpec `json:"spec,omitempty"`

	// What the logical cluster is now.
	// +kubebuilder:default={}
	// +optional
	Status LogicalClusterStatus `json:"status,omitempty"`
}

// LogicalClusterSpec says what a logical cluster is to be.
type LogicalClusterSpec struct {
	// Whether the LogicalCluster may be deleted itself.
	// Otherwise it goes when its owner is deleted, and only then.
	// +kubebuilder:default=false
	// +optional
	DirectlyDeletable bool `json:"directlyDeletable,omitempty"`

	// The object that this logical cluster exists for and is removed with.
	// Without one, nothing outside the logical cluster stands for it, as with the root.
	// +optional
	Owner *Owner `json:"owner,omitempty"`

	// Who asked for the logical cluster. This user becomes its administrator.
	// +optional
	CreatedBy *UserInfo `json:"createdBy,omitempty"`

	// What has to finish before the logical cluster is Ready.
	// Copied to the status when initialization begins.
	// +optional
	Initializers []Initializer `json:"initializers,omitempty"`

	// What has to finish, once deletion was asked for, before the content is deleted.
	// Copied to the status when initialization begins.
	// +optional
	Terminators []Terminator `json:"terminators,omitempty"`
}

// LogicalClusterStatus says what a logical cluster is now.
type LogicalClusterStatus struct {
	// Base URL of the logical cluster's API: what a kubeconfig has as its server.
	// +optional
	URL string `json:"URL,omitempty"`

	// How far the life of the logical cluster has come.
	// Ordinary requests are served once it is Ready.
	// +kubebuilder:default=Scheduling
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// What has been observed about the logical cluster.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// Initializers that have not finished.
	// Each removes its own name when it has; with the last one gone the logical cluster becomes Ready.
	// +optional
	Initializers []Initializer `json:"initializers,omitempty"`

	// Terminators that have not finished.
	// Each removes its own name when it has; with the last one gone the content is deleted.
	// +optional
	Terminators []Terminator `json:"terminators,omitempty"`
}

// A Phase is how far the life of a logical cluster has come.
//
// +kubebuilder:validation:Enum=Scheduling;Initializing;Ready;Unavailable;Inactive;Terminating;Deleting
type Phase string

const (
	// PhaseScheduling is the phase until it is known where the logical cluster will be.
	PhaseScheduling Phase = "Scheduling"

	// PhaseInitializing is the phase while initializers prepare the logical cluster.
	PhaseInitializing Phase = "Initializing"

	// PhaseReady is the phase in which the logical cluster can be used.
	PhaseReady Phase = "Ready"

	// PhaseUnavailable is the phase of a workspace that has been Ready and
	// cannot be served at the moment.
	PhaseUnavailable Phase = "Unavailable"

	// PhaseInactive is the phase while an operator has taken the logical
	// cluster offline. See [InactiveAnnotation].
	PhaseInactive Phase = "Inactive"

	// PhaseTerminating is the phase, once deletion was asked for, while
	// terminators are left.
	PhaseTerminating Phase = "Terminating"

	// PhaseDeleting is the phase in which the content is being deleted.
	PhaseDeleting Phase = "Deleting"
)

// Initializer identifies something that prepares new logical clusters.
// It is written "<logical cluster>:<workspace type>", or "system:<name>" for a part of the server.
//
// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9]*[a-z0-9])?:)+[a-z0-9][-a-z0-9]*[a-z0-9]|system:.+)$`
type Initializer string

// Terminator identifies something that cleans up before the content of a logical cluster is deleted.
// It is written "<logical cluster>:<workspace type>", or "system:<name>" for a part of the server.
//
// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9]*[a-z0-9])?:)+[a-z0-9][-a-z0-9]*[a-z0-9]|system:.+)$`
type Terminator string

// Owner is a reference to an object in another logical cluster.
type Owner struct {
	// Group and version of the object, as in "tenancy.kcp.io/v1alpha1".
	// +kubebuilder:validation:Pattern=`^([^/]+/)?[^/]+$`
	// +required
	APIVersion string `json:"apiVersion"`

	// Resource of the object, in plural, as in "workspaces".
	// +kubebuilder:validation:MinLength=1
	// +required
	Resource string `json:"resource"`

	// Name of the object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`

	// Namespace of the object. Empty for objects without one.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Name of the logical cluster that the object is in.
	// +kubebuilder:validation:MinLength=1
	// +required
	Cluster string `json:"cluster"`

	// UID of the object. An object of the same name with another UID is not the owner.
	// +required
	UID types.UID `json:"uid"`
}

// UserInfo is what was known about a user when a request of theirs was accepted.
type UserInfo struct {
	// Name that the user was authenticated as.
	// +optional
	Username string `json:"username,omitempty"`

	// Identifier of the user that stays theirs when the name is given to somebody else.
	// +optional
	UID string `json:"uid,omitempty"`

	// Groups that the user was a member of.
	// +optional
	Groups []string `json:"groups,omitempty"`

	// Whatever else the authenticator told about the user.
	// +optional
	Extra map[string][]string `json:"extra,omitempty"`
}

// LogicalClusterList is a list of LogicalClusters.
//
// +kubebuilder:object:root=true
type LogicalClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// The LogicalClusters of the list.
	Items []LogicalCluster `json:"items"`
}
