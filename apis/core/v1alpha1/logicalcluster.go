package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// LogicalCluster describes the logical cluster that it is in: its owner, its phase and its URL.
// Each logical cluster has exactly one, named "cluster".
// It is created and deleted together with its owner, usually a Workspace in the parent logical cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="Phase of the logical cluster's life cycle"
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.URL`,description="Where the logical cluster is served"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="a logical cluster has one LogicalCluster, and its name is \"cluster\"",fieldPath=".metadata"
type LogicalCluster struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the logical cluster.
	// +kubebuilder:default={}
	// +optional
	Spec LogicalClusterSpec `json:"spec,omitempty"`

	// status is the observed state of the logical cluster.
	// +kubebuilder:default={}
	// +optional
	Status LogicalClusterStatus `json:"status,omitempty"`
}

// LogicalClusterSpec is the desired state of a logical cluster.
type LogicalClusterSpec struct {
	// directlyDeletable says whether users may delete the LogicalCluster itself.
	// If false, it is deleted only together with its owner.
	// Defaults to false.
	// +kubebuilder:default=false
	// +optional
	DirectlyDeletable bool `json:"directlyDeletable,omitempty"`

	// owner is the object that this logical cluster belongs to and is deleted with.
	// Empty if there is none, as for root.
	// +optional
	Owner *Owner `json:"owner,omitempty"`

	// createdBy is the user who created the logical cluster and becomes its administrator.
	// +optional
	CreatedBy *UserInfo `json:"createdBy,omitempty"`

	// initializers must finish before the logical cluster becomes Ready.
	// They are copied to the status when initialization begins.
	// +optional
	Initializers []Initializer `json:"initializers,omitempty"`

	// terminators must finish after a deletion is requested and before the content is deleted.
	// They are copied to the status when initialization begins.
	// +optional
	Terminators []Terminator `json:"terminators,omitempty"`
}

// LogicalClusterStatus is the observed state of a logical cluster.
type LogicalClusterStatus struct {
	// URL is the base URL of the logical cluster's API, as used for the server in a kubeconfig.
	// +optional
	URL string `json:"URL,omitempty"`

	// phase is the phase of the logical cluster's life cycle.
	// Ordinary requests are served once it is Ready.
	// +kubebuilder:default=Scheduling
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// conditions are the observed conditions of the logical cluster.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`

	// initializers are the initializers that have not finished yet.
	// Each removes its own name when it finishes. The logical cluster becomes Ready when the last one is removed.
	// +optional
	Initializers []Initializer `json:"initializers,omitempty"`

	// terminators are the terminators that have not finished yet.
	// Each removes its own name when it finishes. The content of a logical cluster that is being deleted stays until the last one is removed.
	// +optional
	Terminators []Terminator `json:"terminators,omitempty"`
}

// A Phase is a phase of the life cycle of a logical cluster.
//
// +kubebuilder:validation:Enum=Scheduling;Initializing;Ready;Unavailable;Inactive;Terminating;Deleting
type Phase string

const (
	// PhaseScheduling is the phase before a shard is chosen.
	PhaseScheduling Phase = "Scheduling"

	// PhaseInitializing is the phase while initializers are left.
	PhaseInitializing Phase = "Initializing"

	// PhaseReady is the phase in which the logical cluster can be used.
	PhaseReady Phase = "Ready"

	// PhaseUnavailable is the phase of a workspace that was Ready and currently
	// cannot be served.
	PhaseUnavailable Phase = "Unavailable"

	// PhaseInactive is the phase while an operator keeps the logical cluster
	// offline. See [InactiveAnnotation].
	PhaseInactive Phase = "Inactive"

	// PhaseTerminating is the phase, after a deletion is requested, while
	// terminators are left.
	PhaseTerminating Phase = "Terminating"

	// PhaseDeleting is the phase while the content is being deleted.
	PhaseDeleting Phase = "Deleting"
)

// Initializer names an initializer, which prepares new logical clusters.
// It has the form "<logical cluster>:<workspace type>", or "system:<name>" for a part of the server.
//
// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9]*[a-z0-9])?:)+[a-z0-9][-a-z0-9]*[a-z0-9]|system:.+)$`
type Initializer string

// Terminator names a terminator, which cleans up before the content of a logical cluster is deleted.
// It has the form "<logical cluster>:<workspace type>", or "system:<name>" for a part of the server.
//
// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9]*[a-z0-9])?:)+[a-z0-9][-a-z0-9]*[a-z0-9]|system:.+)$`
type Terminator string

// Owner is a reference to an object in another logical cluster.
type Owner struct {
	// apiVersion is the API group and version of the object, such as "tenancy.kcp.io/v1alpha1".
	// +kubebuilder:validation:Pattern=`^([^/]+/)?[^/]+$`
	// +required
	APIVersion string `json:"apiVersion"`

	// resource is the plural resource name of the object, such as "workspaces".
	// +kubebuilder:validation:MinLength=1
	// +required
	Resource string `json:"resource"`

	// name is the name of the object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`

	// namespace is the namespace of the object.
	// Empty for cluster-scoped objects.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// cluster is the name of the logical cluster that has the object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Cluster string `json:"cluster"`

	// uid is the UID of the object.
	// An object of the same name with another UID is not the owner.
	// +required
	UID types.UID `json:"uid"`
}

// UserInfo describes a user at the time of their request.
type UserInfo struct {
	// username is the authenticated name of the user.
	// +optional
	Username string `json:"username,omitempty"`

	// uid identifies the user over time, even if another user gets the same name later.
	// +optional
	UID string `json:"uid,omitempty"`

	// groups are the groups of the user.
	// +optional
	Groups []string `json:"groups,omitempty"`

	// extra are additional attributes of the user from the authenticator.
	// +optional
	Extra map[string][]string `json:"extra,omitempty"`
}

// LogicalClusterList is a list of LogicalClusters.
//
// +kubebuilder:object:root=true
type LogicalClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the LogicalClusters.
	Items []LogicalCluster `json:"items"`
}
