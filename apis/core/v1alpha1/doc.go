// Package v1alpha1 is the API of logical clusters and of the shards that host them, core.kcp.io/v1alpha1.
//
// +kubebuilder:object:generate=true
// +groupName=core.kcp.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "core.kcp.io", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &LogicalCluster{}, &LogicalClusterList{}, &Shard{}, &ShardList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
