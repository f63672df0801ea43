package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// SyncTarget is a physical cluster that runs workloads of other workspaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the target takes workloads"
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,description="Version of the physical cluster"
// +kubebuilder:printcolumn:name="Unschedulable",type=boolean,JSONPath=`.spec.unschedulable`,description="Whether new workloads are kept away"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why the target is not ready"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SyncTarget struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how the physical cluster is reached and used.
	// +optional
	Spec SyncTargetSpec `json:"spec,omitempty"`

	// status is what the agent of the physical cluster reported last.
	// +optional
	Status SyncTargetStatus `json:"status,omitempty"`
}

// SyncTargetSpec says how a physical cluster is reached and used.
type SyncTargetSpec struct {
	// unschedulable keeps new replicas away from the target. Replicas that are there stay.
	// The default is false.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`

	// evictAfter is the time after which all workloads leave the target.
	// The default is never.
	// +optional
	EvictAfter *metav1.Time `json:"evictAfter,omitempty"`

	// mode says which side opens the connection. Push: the server calls the physical cluster.
	// Pull: an agent in the physical cluster calls the server. The default is Push.
	// +kubebuilder:validation:Enum=Push;Pull
	// +kubebuilder:default=Push
	// +optional
	Mode SyncMode `json:"mode,omitempty"`

	// push says how the server reaches the physical cluster. It has no effect in mode Pull.
	// +optional
	Push *SyncTargetPush `json:"push,omitempty"`

	// credentialsAfter revokes the certificates of agents that were issued before.
	// The default is none.
	// +optional
	CredentialsAfter *metav1.Time `json:"credentialsAfter,omitempty"`

	// fence says that no workload runs in the physical cluster any more, and that none starts there
	// before the cluster answers the server again. Workloads that run in one cluster at a time then
	// start in another one. "kubectl kcp workload fence" sets it. The default is none.
	// +optional
	Fence *SyncTargetFence `json:"fence,omitempty"`

	// probes tell a lost agent from a lost physical cluster. The server asks them while the
	// physical cluster does not answer it, or its agent does not report. The default is none.
	// +kubebuilder:validation:MaxItems=3
	// +listType=map
	// +listMapKey=url
	// +optional
	Probes []SyncTargetProbe `json:"probes,omitempty"`

	// taints keep workloads without a matching toleration away from the target. The effect
	// NoExecute also removes workloads that are there, once replacements run.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +optional
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// SyncTargetFence is the statement of an operator about one outage of a physical cluster.
type SyncTargetFence struct {
	// unreachableSince is the outage that the statement is about: the value of
	// status.unreachableSince. The fence ends with the outage.
	// +required
	UnreachableSince metav1.Time `json:"unreachableSince"`
}

// SyncTargetProbe is a URL that shows whether a physical cluster is alive. A response with a
// status code below 400, or 401 or 403, means that it is alive. Any other response means that it
// is down. Without a response, the probe has no effect.
type SyncTargetProbe struct {
	// url that is requested with GET, such as https://east.example.com:6443/livez.
	// +kubebuilder:validation:Pattern=`^https://[^/]+`
	// +kubebuilder:validation:MaxLength=2048
	// +required
	URL string `json:"url"`

	// caBundle has the certificate authorities of the URL, in PEM. The default is those of the
	// machine of the server.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
}

// SyncMode says which side of a SyncTarget opens the connection.
type SyncMode string

// Modes of SyncTargets.
const (
	// PushMode means that the server calls the physical cluster.
	PushMode SyncMode = "Push"
	// PullMode means that an agent in the physical cluster calls the server.
	PullMode SyncMode = "Pull"
)

// SyncTargetPush says how the server reaches a physical cluster.
type SyncTargetPush struct {
	// kubeconfigSecretRef is the Secret in the workspace of the SyncTarget that has the
	// kubeconfig of the physical cluster under the key "kubeconfig".
	// +required
	KubeconfigSecretRef SecretReference `json:"kubeconfigSecretRef"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`

	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// SyncTargetStatus is what the agent of a physical cluster reported last.
type SyncTargetStatus struct {
	// key identifies the target in objects of other workspaces, which do not show its name.
	// +optional
	Key string `json:"key,omitempty"`

	// version is the version of the physical cluster, such as v1.36.3.
	// +optional
	Version string `json:"version,omitempty"`

	// physicalCluster is the UID of the namespace kube-system of the physical cluster. It does
	// not change: another physical cluster needs another SyncTarget.
	// +optional
	PhysicalCluster string `json:"physicalCluster,omitempty"`

	// lastSyncerHeartbeatTime is when the agent reported last. It is written at most once per
	// minute while nothing changes.
	// +optional
	LastSyncerHeartbeatTime *metav1.Time `json:"lastSyncerHeartbeatTime,omitempty"`

	// unreachableSince is when the physical cluster stopped answering. It is empty while the
	// cluster answers, and while it is known to be alive although its agent does not report.
	// +optional
	UnreachableSince *metav1.Time `json:"unreachableSince,omitempty"`

	// leaseSeconds is the time without contact to the server after which the agent stops the
	// workloads whose Placement says so, see failover.leaseFencing. It is empty if the agent
	// stops none.
	// +optional
	LeaseSeconds *int32 `json:"leaseSeconds,omitempty"`

	// conditions are the latest observations of the target.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// SyncTargetList is a list of SyncTargets.
//
// +kubebuilder:object:root=true
type SyncTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []SyncTarget `json:"items"`
}
