// Package v1alpha1 has the condition type that all kinds of this project use in
// their status: conditions with a severity.
//
// +kubebuilder:object:generate=true
package v1alpha1
