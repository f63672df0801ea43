package admit

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
)

// partitions validates Partitions, and keeps users from the status of PartitionSets.
func partitions(_ context.Context, r Request) error {
	if r.GetResource().Group != topology.GroupVersion.Group || r.GetOperation() != admission.Create && r.GetOperation() != admission.Update {
		return nil
	}
	if r.GetSubresource() == "status" && !r.Privileged() {
		return r.Forbid(errors.New("the status is kept by the system"))
	}
	if r.GetResource().Resource != "partitions" || r.GetSubresource() != "" {
		return nil
	}
	p, err := typed[topology.Partition](r)
	if err != nil {
		return err
	}
	if _, err := metav1.LabelSelectorAsSelector(p.Spec.Selector); err != nil {
		return apierrors.NewInvalid(schema.GroupKind{Group: topology.GroupVersion.Group, Kind: "Partition"}, p.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "selector"), p.Spec.Selector, err.Error()),
		})
	}
	return nil
}
