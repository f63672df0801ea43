package define

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/unforked/kcp/internal/request/bounds"
)

// patterns counts the regular expressions of a definition.
type patterns struct {
	bounds.Patterns
	err *field.Error
}

// checkPatterns refuses a definition whose regular expressions are too large. It must
// run before they are compiled.
func checkPatterns(crd *apiextensions.CustomResourceDefinition) *field.Error {
	p := &patterns{}
	p.validation(crd.Spec.Validation, field.NewPath("spec", "validation"))
	for i := range crd.Spec.Versions {
		p.validation(crd.Spec.Versions[i].Schema, field.NewPath("spec", "versions").Index(i).Child("schema"))
	}
	return p.err
}

func (p *patterns) validation(v *apiextensions.CustomResourceValidation, at *field.Path) {
	if v != nil {
		p.schema(v.OpenAPIV3Schema, at.Child("openAPIV3Schema"))
	}
}

// schema adds the expressions of a schema and of all schemas in it. Errors have the path
// of the outermost schema, because inner paths can be very long.
func (p *patterns) schema(s *apiextensions.JSONSchemaProps, at *field.Path) {
	if s == nil || p.err != nil {
		return
	}
	p.refuse(p.Add(s.Pattern), at)
	for _, rule := range s.XValidations {
		p.refuse(p.AddCEL(rule.Rule), at)
		p.refuse(p.AddCEL(rule.MessageExpression), at)
	}
	for _, all := range [][]apiextensions.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range all {
			p.schema(&all[i], at)
		}
	}
	for _, all := range []map[string]apiextensions.JSONSchemaProps{s.Properties, s.PatternProperties, s.Definitions} {
		for _, one := range all {
			p.schema(&one, at)
		}
	}
	for pattern := range s.PatternProperties {
		p.refuse(p.Add(pattern), at)
	}
	for _, dependency := range s.Dependencies {
		p.schema(dependency.Schema, at)
	}
	if s.Items != nil {
		p.schema(s.Items.Schema, at)
		for i := range s.Items.JSONSchemas {
			p.schema(&s.Items.JSONSchemas[i], at)
		}
	}
	if s.AdditionalProperties != nil {
		p.schema(s.AdditionalProperties.Schema, at)
	}
	if s.AdditionalItems != nil {
		p.schema(s.AdditionalItems.Schema, at)
	}
	p.schema(s.Not, at)
}

func (p *patterns) refuse(err error, at *field.Path) {
	if err != nil && p.err == nil {
		p.err = field.Forbidden(at, err.Error())
	}
}
