package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIConversion converts objects of one APIResourceSchema between its versions.
// It has the name of the APIResourceSchema and is in the same logical cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIConversion struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how objects are converted.
	// +required
	Spec APIConversionSpec `json:"spec"`
}

// APIConversionSpec says how objects are converted.
type APIConversionSpec struct {
	// conversions are the conversions from one version to another, one for each direction.
	// +listType=map
	// +listMapKey=from
	// +listMapKey=to
	// +required
	Conversions []VersionConversion `json:"conversions"`
}

// VersionConversion converts objects from one version to another.
type VersionConversion struct {
	// from is the version that objects are converted from, such as "v1".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^v[1-9][0-9]*([a-z]+[1-9][0-9]*)?$`
	// +required
	From string `json:"from"`

	// to is the version that objects are converted to, such as "v2".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^v[1-9][0-9]*([a-z]+[1-9][0-9]*)?$`
	// +required
	To string `json:"to"`

	// rules set the fields of the converted object.
	// +listType=map
	// +listMapKey=destination
	// +required
	Rules []ConversionRule `json:"rules"`

	// preserve are the paths of fields that the other version does not have, such as "spec.color".
	// Their values are kept in an annotation of the converted object.
	// +optional
	Preserve []string `json:"preserve,omitempty"`
}

// ConversionRule sets one field of the converted object.
type ConversionRule struct {
	// field is the path of the field whose value is taken, such as "spec.firstName".
	// +kubebuilder:validation:MinLength=1
	// +required
	Field string `json:"field"`

	// destination is the path of the field that is set in the converted object.
	// +kubebuilder:validation:MinLength=1
	// +required
	Destination string `json:"destination"`

	// transformation is a CEL expression for the value that is set, with the value that is taken as "self".
	// If empty, the value is copied.
	// +optional
	Transformation string `json:"transformation,omitempty"`
}

// APIConversionList is a list of APIConversions.
//
// +kubebuilder:object:root=true
type APIConversionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIConversions.
	Items []APIConversion `json:"items"`
}
