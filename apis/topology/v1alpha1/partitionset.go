package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// PartitionSet divides shards by their labels: it owns one Partition for each combination of values that shards have.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Count",type=integer,JSONPath=`.status.count`,description="Number of partitions"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PartitionSet struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how shards are divided.
	// +required
	Spec PartitionSetSpec `json:"spec"`

	// status is the observed state of the set.
	// +optional
	Status PartitionSetStatus `json:"status,omitempty"`
}

// PartitionSetSpec says how shards are divided.
type PartitionSetSpec struct {
	// dimensions are the keys of the labels by which shards are divided, such as "region".
	// If empty, there is one Partition with all selected shards.
	// +optional
	Dimensions []string `json:"dimensions,omitempty"`

	// shardSelector selects the shards to divide.
	// If empty, these are all shards.
	// +optional
	ShardSelector *ShardSelector `json:"shardSelector,omitempty"`
}

// ShardSelector selects shards by their labels. It is a metav1.LabelSelector of limited size, so that every server can afford to check it.
//
// +structType=atomic
type ShardSelector struct {
	// matchLabels are labels that shards must have.
	// There are at most ten.
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(key, !format.qualifiedName().validate(key).hasValue())",message="each key must be a label key"
	// +optional
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// matchExpressions are requirements for the labels of shards.
	// There are at most ten.
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	// +optional
	MatchExpressions []ShardRequirement `json:"matchExpressions,omitempty"`
}

// ShardRequirement is a requirement for one label of shards.
type ShardRequirement struct {
	// key is the key of the label.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="key must be a label key"
	// +required
	Key string `json:"key"`

	// operator compares the value of the label with values: In, NotIn, Exists or DoesNotExist.
	// +required
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// values are the values for the operators In and NotIn.
	// Empty for the other operators.
	// +listType=atomic
	// +optional
	Values []LabelValue `json:"values,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$`
type LabelValue string

// LabelSelector returns s in the form that the Kubernetes libraries understand. A nil s
// selects all shards.
func (s *ShardSelector) LabelSelector() *metav1.LabelSelector {
	out := &metav1.LabelSelector{}
	if s == nil {
		return out
	}
	for key, value := range s.MatchLabels {
		out = metav1.AddLabelToSelector(out, key, string(value))
	}
	for _, r := range s.MatchExpressions {
		next := metav1.LabelSelectorRequirement{Key: r.Key, Operator: r.Operator}
		for _, v := range r.Values {
			next.Values = append(next.Values, string(v))
		}
		out.MatchExpressions = append(out.MatchExpressions, next)
	}
	return out
}

// PartitionSetStatus is the observed state of a set.
type PartitionSetStatus struct {
	// count is the number of Partitions.
	// +optional
	Count int `json:"count,omitempty"`

	// conditions are the observed conditions of the set.
	// +optional
	Conditions conditions.Conditions `json:"conditions,omitempty"`
}

// Conditions of PartitionSets.
const (
	// PartitionSetValid is True when the selector is valid.
	PartitionSetValid conditions.Type = "PartitionSetValid"

	// PartitionsReady is True when all Partitions exist.
	PartitionsReady conditions.Type = "PartitionsReady"
)

// Reasons of conditions of PartitionSets that are not True.
const (
	// InvalidSelector means for [PartitionSetValid] that the selector or a dimension is invalid.
	InvalidSelector = "InvalidSelector"

	// ErrorGeneratingPartitions means for [PartitionsReady] that a Partition could not be
	// created, changed or deleted.
	ErrorGeneratingPartitions = "ErrorGeneratingPartitions"
)

// PartitionSetList is a list of PartitionSets.
//
// +kubebuilder:object:root=true
type PartitionSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the PartitionSets.
	Items []PartitionSet `json:"items"`
}
