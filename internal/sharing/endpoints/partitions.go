package endpoints

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
)

// A Partition is the decoded part of a Partition.
type Partition struct {
	// Name is the name of the object.
	Name string
	// Set and UID are the name and UID of the PartitionSet that owns it, empty for none.
	Set string
	UID types.UID
	// Selector selects shards. It is nil if the object has an invalid one.
	Selector labels.Selector
}

func partitionOf(p *topology.Partition) (*Partition, error) {
	out := &Partition{Name: p.Name, Selector: labels.Everything()}
	if p.Spec.Selector != nil {
		out.Selector, _ = metav1.LabelSelectorAsSelector(p.Spec.Selector) // nil for an invalid one
	}
	for _, o := range p.OwnerReferences {
		if o.Controller != nil && *o.Controller && o.Kind == "PartitionSet" && o.APIVersion == topology.GroupVersion.String() {
			out.Set, out.UID = o.Name, o.UID
		}
	}
	return out, nil
}
