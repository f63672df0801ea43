package define

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
)

func withSchema(s apiextensions.JSONSchemaProps) *apiextensions.CustomResourceDefinition {
	return &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{
		Versions: []apiextensions.CustomResourceDefinitionVersion{{Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &s}}},
	}}
}

// Regular expressions are limited in all parts of a schema.
func TestPatterns(t *testing.T) {
	many := map[string]apiextensions.JSONSchemaProps{}
	for i := range 501 {
		many[fmt.Sprint("p", i)] = apiextensions.JSONSchemaProps{Pattern: fmt.Sprintf("^%d$", i)}
	}
	large := map[string]apiextensions.JSONSchemaProps{}
	for i := range 110 {
		large[fmt.Sprint("p", i)] = apiextensions.JSONSchemaProps{Pattern: fmt.Sprintf("%dx{950}", i)}
	}
	bomb := strings.Repeat(".{1000}", 20)
	same := map[string]apiextensions.JSONSchemaProps{}
	for i := range 1000 {
		same[fmt.Sprint("p", i)] = apiextensions.JSONSchemaProps{Pattern: "^[a-z]{1,63}$"}
	}
	rule := func(text string) apiextensions.JSONSchemaProps {
		return apiextensions.JSONSchemaProps{XValidations: apiextensions.ValidationRules{{Rule: text}}}
	}
	for name, tc := range map[string]struct {
		schema apiextensions.JSONSchemaProps
		want   string // part of the refusal; empty for none
	}{
		"none":          {apiextensions.JSONSchemaProps{}, ""},
		"the same":      {apiextensions.JSONSchemaProps{Properties: same}, ""},
		"many":          {apiextensions.JSONSchemaProps{Properties: many}, "too many"},
		"large":         {apiextensions.JSONSchemaProps{Properties: large}, "too large"},
		"one":           {apiextensions.JSONSchemaProps{Pattern: bomb}, "repeats too much"},
		"deep inside":   {apiextensions.JSONSchemaProps{Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &apiextensions.JSONSchemaProps{AnyOf: []apiextensions.JSONSchemaProps{{Not: &apiextensions.JSONSchemaProps{Pattern: bomb}}}}}}, "repeats too much"},
		"of names":      {apiextensions.JSONSchemaProps{PatternProperties: map[string]apiextensions.JSONSchemaProps{bomb: {}}}, "repeats too much"},
		"in a rule":     {rule("self.matches('" + bomb + "')"), "repeats too much"},
		"escaped":       {rule(`self.all(x, x.find("` + strings.Repeat(`.\x7b1000}`, 20) + `") == "")`), "repeats too much"},
		"a usual rule":  {rule(`self.matches("^[a-z]{1,63}$") && size(self) < 5000`), ""},
		"a broken rule": {rule(`self.matches("`), ""},
		"not a pattern": {apiextensions.JSONSchemaProps{Pattern: "("}, ""},
	} {
		err := checkPatterns(withSchema(tc.schema))
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
