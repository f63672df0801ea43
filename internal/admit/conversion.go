package admit

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/sharing/conversion"
)

// conversion validates an APIConversion against the schema whose objects it converts.
func (s Sharing) conversion(ctx context.Context, r Request) error {
	n, err := wrote[apisv1alpha1.APIConversion](r, "apiconversions")
	if err != nil || n == nil || n.DeletionTimestamp != nil {
		return err
	}
	if objects, bytes := s.ConversionUsage(r.Cluster); r.GetOperation() == admission.Create && (objects >= maxDefinitions || bytes >= maxDefinitionBytes) {
		return r.Forbid(fmt.Errorf("a workspace has at most %d APIConversions of 64 MiB together; delete some, or use another workspace", maxDefinitions))
	}
	of, err := s.Schema(ctx, r.Cluster, n.Name)
	switch {
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("read the APIResourceSchema %s: %w", n.Name, err))
	case of == nil:
		return r.Forbid(fmt.Errorf("there is no APIResourceSchema %s in this workspace: create it first; an APIConversion has the name of the schema whose objects it converts", n.Name))
	case of.Spec.Conversion != nil && of.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter:
		return r.Forbid(fmt.Errorf("the APIResourceSchema %s has a conversion webhook, which converts its objects; create a schema without one", n.Name))
	}
	crd, err := of.CustomResourceDefinition()
	if err != nil {
		return r.Forbid(err)
	}
	if _, errs := conversion.Compile(crd, &n.Spec); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: apisv1alpha1.GroupVersion.Group, Kind: "APIConversion"}, n.Name, errs)
	}
	return nil
}
