package serve

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/upstream"
)

// newHandler returns upstream's handler of a definition, which lets objects have the names that the
// definition allows. Only the strategy of the storage version is accessible, so the admission of
// APIResourceSchemas requires that no other version is served.
func newHandler(of upstream.DefinitionHandler, crd *apiextensionsv1.CustomResourceDefinition) (upstream.Handler, error) {
	h, err := of.New()
	if err != nil || !namesAreSegments(crd) {
		return h, err
	}
	objects, err := upstream.Objects(h, crd)
	if err != nil {
		return nil, err
	}
	objects.CreateStrategy = named(crd, objects.CreateStrategy)
	return h, nil
}

func namesAreSegments(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[apisv1alpha1.NameValidationAnnotation] == string(apisv1alpha1.NameIsPathSegment)
}

// named returns a strategy with the rule of a definition for the names of objects.
func named(crd *apiextensionsv1.CustomResourceDefinition, s rest.RESTCreateStrategy) rest.RESTCreateStrategy {
	if !namesAreSegments(crd) {
		return s
	}
	return segmentNames{s}
}

// segmentNames is upstream's strategy for custom resources, except for the names of objects: they may be
// all printable segments of a path. Only the creation of an object checks its name.
type segmentNames struct{ rest.RESTCreateStrategy }

// Validate implements [rest.RESTCreateStrategy].
func (s segmentNames) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	errs := s.RESTCreateStrategy.Validate(ctx, o)
	m, err := meta.Accessor(o)
	if err != nil {
		return errs
	}
	for of, name := range map[string]string{"name": m.GetName(), "generateName": m.GetGenerateName()} {
		at := field.NewPath("metadata", of)
		strict := validation.NameIsDNSSubdomain(name, of == "generateName")
		errs = slices.DeleteFunc(errs, func(e *field.Error) bool { // a schema may have rules for names, too
			return e.Field == at.String() && e.Type == field.ErrorTypeInvalid && slices.Contains(strict, e.Detail)
		})
		for _, why := range segmentMistakes(name) {
			errs = append(errs, field.Invalid(at, name, why))
		}
	}
	return errs
}

// segmentMistakes returns why a text is no name of an object. Keys of etcd contain names, and so do
// logs and URLs.
func segmentMistakes(name string) []string {
	all := content.IsPathSegmentName(name)
	if len(name) > utilvalidation.DNS1123SubdomainMaxLength {
		all = append(all, fmt.Sprintf("must have at most %d bytes", utilvalidation.DNS1123SubdomainMaxLength))
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		all = append(all, "must have only printable characters")
	}
	if strings.TrimSpace(name) != name {
		all = append(all, "must not begin or end with a space")
	}
	return all
}
