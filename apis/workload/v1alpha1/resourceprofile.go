package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// ResourceProfile says how a custom resource is treated on physical clusters. It is in the compute
// workspace, whose APIExport "kubernetes" has the resource, and applies to the objects of all
// consumers. The kinds of Kubernetes have profiles of their own, which cannot be changed.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.spec.class`,description="How many targets have an object"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.resource + '.' + self.spec.group",message="the name must be the resource and the group, as in widgets.example.com",fieldPath=".metadata"
type ResourceProfile struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how the resource is treated.
	// +required
	Spec ResourceProfileSpec `json:"spec"`

	// status says what the server observed.
	// +optional
	Status ResourceProfileStatus `json:"status,omitempty"`
}

// ResourceProfileSpec says how a resource is treated.
//
// +kubebuilder:validation:XValidation:rule="self.class != 'Replicated' || has(self.replicasPath)",message="class Replicated needs replicasPath"
type ResourceProfileSpec struct {
	// group of the resource.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`
	// +required
	Group string `json:"group"`

	// version in which the resource is read here, and written in physical clusters.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Version string `json:"version"`

	// resource is the plural name, such as widgets. Its objects have namespaces.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:MinLength=1
	// +required
	Resource string `json:"resource"`

	// class says how many targets have an object. Singleton: one at a time. Replicated: its
	// replicas are divided. Everywhere: all that the Placement selects. Follows: all that have a
	// workload of its namespace. The default is Singleton.
	// +kubebuilder:validation:Enum=Singleton;Replicated;Everywhere;Follows
	// +kubebuilder:default=Singleton
	// +optional
	Class ResourceClass `json:"class,omitempty"`

	// replicasPath is the path of the number of replicas, as in ["spec", "replicas"].
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	ReplicasPath []string `json:"replicasPath,omitempty"`

	// podTemplatePath is the path of a template of pods, as in ["spec", "template"]. The
	// ConfigMaps, Secrets and service accounts that it refers to go with the object.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	PodTemplatePath []string `json:"podTemplatePath,omitempty"`

	// counters are fields of the status whose values are summed over targets. A Singleton has
	// the status of its target.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Counters []string `json:"counters,omitempty"`

	// conditions is true if the status has conditions. The condition Placed then says why an
	// object is not placed. The default is false.
	// +optional
	Conditions bool `json:"conditions,omitempty"`
}

// ResourceProfileStatus is what the server observed about a profile.
type ResourceProfileStatus struct {
	// conditions are the observations. InUse is True while the profile is being deleted and objects of
	// its resource are placed: it stays in effect for them.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// ResourceClass says how many targets have an object of a resource.
type ResourceClass string

// Classes of resources.
const (
	// Singleton means that one target at a time has an object.
	Singleton ResourceClass = "Singleton"
	// Replicated means that replicas are divided among targets.
	Replicated ResourceClass = "Replicated"
	// Everywhere means that all targets that the Placement selects have an object.
	Everywhere ResourceClass = "Everywhere"
	// Follows means that all targets that have a workload of the namespace have an object.
	Follows ResourceClass = "Follows"
)

// ResourceProfileList is a list of ResourceProfiles.
//
// +kubebuilder:object:root=true
type ResourceProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []ResourceProfile `json:"items"`
}
