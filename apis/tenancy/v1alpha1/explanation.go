package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// WorkspaceExplanation describes the state of a workspace and why a request to it is
// allowed or refused. The server returns it from a virtual workspace and never stores it.
//
// +kubebuilder:object:generate=false
type WorkspaceExplanation struct {
	metav1.TypeMeta `json:",inline"`

	// path is the path of the workspace.
	Path string `json:"path"`

	// cluster is the name of the logical cluster of the workspace.
	Cluster string `json:"cluster"`

	// URL is the address at which the workspace is served.
	URL string `json:"URL"`

	// phase is the phase of the life cycle of the workspace. Empty means that its logical cluster
	// has none.
	Phase core.Phase `json:"phase,omitempty"`

	// deleting is true if the deletion of the workspace has been requested. The default is false.
	Deleting bool `json:"deleting,omitempty"`

	// obstacles keep the workspace from becoming ready, or its deletion from finishing. Empty means
	// that there are none, or that the user may read neither the Workspace nor the LogicalCluster.
	Obstacles []Obstacle `json:"obstacles,omitempty"`

	// access explains the decision about the request in question.
	Access AccessExplanation `json:"access"`
}

// An Obstacle is one thing that a workspace waits for.
//
// +kubebuilder:object:generate=false
type Obstacle struct {
	// type is Initializer, Terminator, Finalizer or the type of a condition.
	Type string `json:"type"`

	// name is the name of the initializer, terminator or finalizer, or the reason of the condition.
	// Empty means that the condition has no reason.
	Name string `json:"name,omitempty"`

	// object is the object that has the initializer, terminator or finalizer, such as
	// "Workspace team-a". It is empty for conditions.
	Object string `json:"object,omitempty"`

	// message gives details, and says who can remove the obstacle and how. Empty means that the
	// condition has no message.
	Message string `json:"message,omitempty"`
}

// AccessExplanation explains the decision about a request, step by step.
//
// +kubebuilder:object:generate=false
type AccessExplanation struct {
	// user is the name of the user who makes the request.
	User string `json:"user"`

	// groups are the groups of the user. Empty means none.
	Groups []string `json:"groups,omitempty"`

	// request is the request in question, such as "get configmaps" or "access /".
	Request string `json:"request"`

	// allowed is true if the request is allowed.
	Allowed bool `json:"allowed"`

	// message says why the request is refused, and what to do. It is empty if the request is allowed.
	Message string `json:"message,omitempty"`

	// steps are the steps of the decision, in order. Empty means that no authorizer was asked.
	Steps []AccessStep `json:"steps,omitempty"`
}

// AccessStep is the decision of one authorizer.
//
// +kubebuilder:object:generate=false
type AccessStep struct {
	// name is the name of the authorizer, as in audit events.
	Name string `json:"name"`

	// decision is Allowed, Denied or NoOpinion.
	Decision string `json:"decision"`

	// reason is the reason of the decision. Empty means that the authorizer gives none.
	Reason string `json:"reason,omitempty"`
}
