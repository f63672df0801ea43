package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready is the type of the condition that sums up all others of an object that has it.
const Ready Type = "Ready"

// A Type names one aspect of an object, in CamelCase. An object has at most one
// condition of a type.
type Type string

// A Severity says how much it matters that a condition is not True.
type Severity string

const (
	// SeverityError means that somebody has to act.
	SeverityError Severity = "Error"

	// SeverityWarning means that the object works, but less well than it should.
	SeverityWarning Severity = "Warning"

	// SeverityInfo means that nothing is wrong: something is under way.
	SeverityInfo Severity = "Info"

	// SeverityNone is the severity of conditions that are True.
	SeverityNone Severity = ""
)

// Condition is one observation about an object.
type Condition struct {
	// Aspect of the object that this condition is about, in CamelCase.
	// A list holds each type at most once.
	// +required
	Type Type `json:"type"`

	// Whether the aspect holds: True, False or Unknown.
	// +required
	Status metav1.ConditionStatus `json:"status"`

	// How much it matters that the status is not True: Error when somebody has to act, Warning when the object works with restrictions, Info when something is merely under way.
	// Empty when the status is True.
	// +optional
	Severity Severity `json:"severity,omitempty"`

	// When the status last changed from one value to another.
	// Changes of the reason or message leave it as it is.
	// +required
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`

	// Why the condition has this status: one word in CamelCase, meant for programs.
	// +optional
	Reason string `json:"reason,omitempty"`

	// What happened and, when something is wrong, what to do about it, meant for people.
	// +optional
	Message string `json:"message,omitempty"`
}

// Conditions are the observations about one object, at most one of each type.
type Conditions []Condition

// Get returns the condition of type t, or nil if there is none. What it
// returns is part of the list.
func (c Conditions) Get(t Type) *Condition {
	i := slices.IndexFunc(c, func(have Condition) bool { return have.Type == t })
	if i < 0 {
		return nil
	}
	return &c[i]
}

// IsTrue reports whether there is a condition of type t with status True.
func (c Conditions) IsTrue(t Type) bool {
	have := c.Get(t)
	return have != nil && have.Status == metav1.ConditionTrue
}

// Set adds next, or puts it in place of the condition of the same type, and
// reports whether that changed anything.
//
// The transition time is kept unless the status changes; it then becomes the
// one of next, or the present if next has none. A condition that is True loses
// its severity.
func (c *Conditions) Set(next Condition) bool {
	if next.Status == metav1.ConditionTrue {
		next.Severity = SeverityNone
	}
	have := c.Get(next.Type)
	switch {
	case have != nil && have.Status == next.Status:
		next.LastTransitionTime = have.LastTransitionTime
	case next.LastTransitionTime.IsZero():
		next.LastTransitionTime = metav1.Now().Rfc3339Copy() // whole seconds: the form in which it comes back
	}
	switch {
	case have == nil:
		*c = append(*c, next)
	case *have == next:
		return false
	default:
		*have = next
	}
	return true
}
