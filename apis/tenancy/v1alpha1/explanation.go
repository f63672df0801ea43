package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// WorkspaceExplanation says how a workspace is, and whether and why somebody gets to
// it. The server answers with it; it is not stored, and no kind that is served.
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

	// Phase is how far its life has come.
	Phase core.Phase `json:"phase,omitempty"`

	// Deleting is true once its deletion was asked for.
	Deleting bool `json:"deleting,omitempty"`

	// Obstacles are what keeps it from being ready, or from being gone if it is being
	// deleted. They are left out for those who may not read them.
	Obstacles []Obstacle `json:"obstacles,omitempty"`

	// Access is how the request that was asked about is decided.
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

	// Object that it is on, as in "Workspace team-a".
	Object string `json:"object,omitempty"`

	// Message says more, and who can do what about it.
	Message string `json:"message,omitempty"`
}

// AccessExplanation says how a request is decided, step by step.
//
// +kubebuilder:object:generate=false
type AccessExplanation struct {
	// User is whose request it is.
	User string `json:"user"`

	// Groups that he is in.
	Groups []string `json:"groups,omitempty"`

	// Request is what was asked about, as in "get configmaps" or "access /".
	Request string `json:"request"`

	// Allowed is whether it is allowed.
	Allowed bool `json:"allowed"`

	// Message says what to do if it is not.
	Message string `json:"message,omitempty"`

	// Steps are how it was decided, in order.
	Steps []AccessStep `json:"steps,omitempty"`
}

// AccessStep is how one step of authorization decided.
//
// +kubebuilder:object:generate=false
type AccessStep struct {
	// Name of the step, as in audit events.
	Name string `json:"name"`

	// Decision is Allowed, Denied or NoOpinion.
	Decision string `json:"decision"`

	// Reason of the decision.
	Reason string `json:"reason,omitempty"`
}
