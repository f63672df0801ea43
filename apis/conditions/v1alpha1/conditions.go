package v1alpha1

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready is the type of the condition that summarizes all others.
const Ready Type = "Ready"

// A Type names one aspect of an object, in CamelCase. An object has at most one
// condition of a type.
type Type string

// A Severity grades a condition that is not True.
type Severity string

const (
	// SeverityError means that a person must act.
	SeverityError Severity = "Error"

	// SeverityWarning means that the object works with restrictions.
	SeverityWarning Severity = "Warning"

	// SeverityInfo means that an operation is in progress.
	SeverityInfo Severity = "Info"

	// SeverityNone is the severity of conditions that are True.
	SeverityNone Severity = ""
)

// Condition is one observation about an object.
type Condition struct {
	// type is the aspect of the object that the condition describes, in CamelCase.
	// A list has at most one condition of each type.
	// +required
	Type Type `json:"type"`

	// status is True, False or Unknown.
	// +required
	Status metav1.ConditionStatus `json:"status"`

	// severity grades a status that is not True.
	// Error: a person must act. Warning: the object works with restrictions. Info: an operation is in progress.
	// Empty if the status is True.
	// +optional
	Severity Severity `json:"severity,omitempty"`

	// lastTransitionTime is the time when the status last changed.
	// Changes of the reason or message do not count.
	// +required
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`

	// reason is a word in CamelCase that says why the condition has this status, for programs.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message says what happened and what to do about it, for people.
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

// Summary returns the condition [Ready]: it repeats the first of the others that is not True. Warnings
// do not count. With types, only conditions of these count.
func (c Conditions) Summary(at metav1.Time, of ...Type) Condition {
	sum := Condition{Type: Ready, Status: metav1.ConditionTrue, LastTransitionTime: at}
	for _, have := range c {
		if len(of) > 0 && !slices.Contains(of, have.Type) {
			continue
		}
		if have.Type != Ready && have.Status != metav1.ConditionTrue && have.Severity != SeverityWarning {
			sum.Status, sum.Severity, sum.Reason, sum.Message = have.Status, have.Severity, have.Reason, have.Message
			break
		}
	}
	return sum
}

// Set adds next or replaces the condition of the same type. It reports whether
// the list changed. A changed list is sorted: Ready first, the others by type.
//
// The transition time changes only with the status: to that of next, or to now if
// next has none. A condition that is True has no severity.
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
	slices.SortStableFunc(*c, func(a, b Condition) int {
		if (a.Type == Ready) != (b.Type == Ready) {
			if a.Type == Ready {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Type, b.Type)
	})
	return true
}
