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

	// Path of the workspace.
	Path string `json:"path"`

	// Cluster is the name of its logical cluster.
	Cluster string `json:"cluster"`

	// URL at which it is served.
	URL string `json:"URL"`

	// Phase of its life cycle.
	Phase core.Phase `json:"phase,omitempty"`

	// Deleting is true after its deletion was requested.
	Deleting bool `json:"deleting,omitempty"`

	// Obstacles keep the workspace from becoming ready, or its deletion from finishing.
	// Users who may not read them do not get them.
	Obstacles []Obstacle `json:"obstacles,omitempty"`

	// Access explains the decision about the request in question.
	Access AccessExplanation `json:"access"`
}

// An Obstacle is one thing that a workspace waits for.
//
// +kubebuilder:object:generate=false
type Obstacle struct {
	// Type is Initializer, Terminator, Finalizer or the type of a condition.
	Type string `json:"type"`

	// Name of the initializer, terminator or finalizer, or reason of the condition.
	Name string `json:"name,omitempty"`

	// Object that has it, such as "Workspace team-a".
	Object string `json:"object,omitempty"`

	// Message gives details, and says who can remove the obstacle and how.
	Message string `json:"message,omitempty"`
}

// AccessExplanation explains the decision about a request, step by step.
//
// +kubebuilder:object:generate=false
type AccessExplanation struct {
	// User who makes the request.
	User string `json:"user"`

	// Groups of the user.
	Groups []string `json:"groups,omitempty"`

	// Request in question, such as "get configmaps" or "access /".
	Request string `json:"request"`

	// Allowed is whether it is allowed.
	Allowed bool `json:"allowed"`

	// Message says what to do about a refusal.
	Message string `json:"message,omitempty"`

	// Steps of the decision, in order.
	Steps []AccessStep `json:"steps,omitempty"`
}

// AccessStep is the decision of one authorizer.
//
// +kubebuilder:object:generate=false
type AccessStep struct {
	// Name of the authorizer, as in audit events.
	Name string `json:"name"`

	// Decision is Allowed, Denied or NoOpinion.
	Decision string `json:"decision"`

	// Reason of the decision.
	Reason string `json:"reason,omitempty"`
}
