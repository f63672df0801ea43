package serve

import (
	"context"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"github.com/unforked/kcp/internal/resources/catalog"
)

type endingKey struct{}

// offeredHandler returns the handler of an offered content. A resource of a binding that is being
// deleted gets no new objects.
func offeredHandler(c *catalog.Content) (http.Handler, error) {
	r, err := c.Offers().Registries()
	if err != nil {
		return nil, err
	}
	if !apihelpers.IsCRDConditionTrue(c.Definition, apiextensionsv1.Terminating) {
		return r.Handler.Director, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.Handler.Director.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), endingKey{}, true)))
	}), nil
}

// Offering is an admission that refuses new objects of resources whose binding is being deleted, as
// upstream does for definitions.
func Offering(next admission.Interface) admission.Interface { return offering{next} }

type offering struct{ admission.Interface }

// Admit implements [admission.MutationInterface].
func (a offering) Admit(ctx context.Context, at admission.Attributes, o admission.ObjectInterfaces) error {
	if ending, _ := ctx.Value(endingKey{}).(bool); ending && at.GetOperation() == admission.Create && at.GetSubresource() == "" {
		err := apierrors.NewMethodNotSupported(at.GetResource().GroupResource(), "create")
		err.ErrStatus.Message = "create not allowed while the APIBinding of the resource is being deleted"
		return err
	}
	if next, ok := a.Interface.(admission.MutationInterface); ok {
		return next.Admit(ctx, at, o)
	}
	return nil
}

// Validate implements [admission.ValidationInterface].
func (a offering) Validate(ctx context.Context, at admission.Attributes, o admission.ObjectInterfaces) error {
	if next, ok := a.Interface.(admission.ValidationInterface); ok {
		return next.Validate(ctx, at, o)
	}
	return nil
}
