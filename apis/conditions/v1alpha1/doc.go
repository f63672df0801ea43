// Package v1alpha1 is how every kind of this project reports, in its status,
// what has been observed about an object: a list of conditions with a severity.
//
// +kubebuilder:object:generate=true
package v1alpha1
