package serve

import (
	"fmt"
	"regexp/syntax"
	"strings"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	celparser "github.com/google/cel-go/parser"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/unforked/kcp/internal/bounds"
)

// Limits of the regular expressions in a definition. An expression with repetitions takes
// a few bytes, but compiled up to 128 MiB. The limits are many times those of the largest
// known definitions.
const (
	maxPatterns    = 500     // distinct expressions
	maxPatternSize = 10_000  // instructions of one expression
	maxPatternsSum = 100_000 // instructions of all expressions
	// maxKept is the maximum number of patterns that upstream keeps compiled.
	maxKept = 1000
)

// patterns counts the regular expressions of a definition.
type patterns struct {
	seen  map[string]bool
	size  int
	rules *celparser.Parser
	err   *field.Error
}

// checkPatterns refuses a definition whose regular expressions are too large. It must
// run before they are compiled.
func checkPatterns(crd *apiextensions.CustomResourceDefinition) *field.Error {
	rules, err := celparser.NewParser(celparser.Macros(celparser.AllMacros...))
	if err != nil {
		return field.InternalError(field.NewPath("spec"), err)
	}
	p := patterns{seen: map[string]bool{}, rules: rules}
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
	p.add(s.Pattern, at)
	for _, rule := range s.XValidations {
		p.rule(rule.Rule, at)
		p.rule(rule.MessageExpression, at)
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
		p.add(pattern, at)
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

// rule adds the string literals of a CEL rule, which may be regular expressions:
// upstream compiles literal expressions together with the rule.
func (p *patterns) rule(text string, at *field.Path) {
	if !strings.Contains(text, "matches") && !strings.Contains(text, "find") {
		return
	}
	rule, errs := p.rules.Parse(common.NewTextSource(text))
	if len(errs.GetErrors()) > 0 {
		return // upstream's validation reports it
	}
	ast.PostOrderVisit(rule.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.LiteralKind {
			if literal, ok := e.AsLiteral().Value().(string); ok {
				p.add(literal, at)
			}
		}
	}))
}

func (p *patterns) add(pattern string, at *field.Path) {
	if pattern == "" || p.seen[pattern] || p.err != nil {
		return
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return // upstream's validation reports it
	}
	p.seen[pattern] = true
	size := bounds.Instructions(parsed)
	p.size += size
	switch {
	case size > maxPatternSize:
		p.err = field.Invalid(at, shortened(pattern), fmt.Sprintf("a regular expression repeats too much: it would be compiled to some %d instructions, and may have %d", size, maxPatternSize))
	case p.size > maxPatternsSum:
		p.err = field.Forbidden(at, fmt.Sprintf("the regular expressions are too large: they may be compiled to %d instructions together", maxPatternsSum))
	case len(p.seen) > maxPatterns:
		p.err = field.TooMany(at.Child("pattern"), len(p.seen), maxPatterns)
	}
}

func shortened(pattern string) string {
	const enough = 64
	if len(pattern) > enough {
		return pattern[:enough] + "..."
	}
	return pattern
}
