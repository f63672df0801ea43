package conversion

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
)

const (
	// objectCost is the budget of all expressions for one object, in units of CEL: about ten
	// milliseconds. Validation has a hundred times as much, but runs only for writes.
	objectCost = celconfig.RuntimeCELCostBudget / 100
	// maxExpression is the maximum length of an expression in bytes.
	maxExpression = 4096
)

// errBudget means that a conversion costs too much.
var errBudget = errors.New("the conversion of one object costs too much; its provider must use simpler expressions, or fewer")

// A budget limits the conversion of one object.
type budget struct {
	cost  uint64
	bytes int // of values that are set
}

// A rule sets one field.
type rule struct {
	source, destination path
	// moves means that the field is not a field of the same type in the other version.
	moves bool
	// reads are the fields in the source that the expression reads and the other version lacks.
	reads []path
	// program computes the value. It is nil if the value is copied.
	program cel.Program
	self    *schema.Structural // nil if the fields are not specified
}

func compileRule(at *field.Path, from, to version, v apisv1alpha1.VersionConversion, in apisv1alpha1.ConversionRule) (*rule, field.ErrorList) {
	r := &rule{}
	var errs, wrong field.ErrorList
	r.source, wrong = parseField(at.Child("field"), from, v.From, in.Field)
	errs = append(errs, wrong...)
	r.destination, wrong = parseField(at.Child("destination"), to, v.To, in.Destination)
	if errs = append(errs, wrong...); len(errs) > 0 {
		return r, errs
	}
	source, _ := from.at(r.source)
	destination, _ := to.at(r.destination)
	same, ok := to.at(r.source)
	r.moves = !ok || same.kind() != source.kind()
	r.self = source.structural
	if in.Transformation == "" {
		if a, b := source.kind(), destination.kind(); !assignable(a, b) {
			errs = append(errs, field.Invalid(at.Child("destination"), in.Destination, fmt.Sprintf("is of type %s, and %s of type %s; add a transformation", b, in.Field, a)))
		}
		return r, errs
	}
	read, err := r.compile(in.Transformation, destination)
	if err != nil {
		errs = append(errs, field.Invalid(at.Child("transformation"), in.Transformation, err.Error()))
	}
	for _, p := range read {
		if p = slices.Concat(r.source, p); !to.has(p) {
			r.reads = append(r.reads, p)
		}
	}
	return r, errs
}

// assignable reports whether a value of one JSON type can be one of another.
func assignable(from, to string) bool {
	return from == to || from == "" || to == "" || from == "integer" && to == "number"
}

// compile compiles the expression of a rule. It returns the fields of self that the expression reads.
func (r *rule) compile(text string, destination version) ([]path, error) {
	if len(text) > maxExpression {
		return nil, fmt.Errorf("is longer than %d bytes", maxExpression)
	}
	options := environment.VersionedOptions{IntroducedVersion: utilversion.MajorMinor(1, 0)}
	if t := declared(r.self); t != nil {
		options.EnvOptions, options.DeclTypes = []cel.EnvOption{cel.Variable("self", t.CelType())}, []*apiservercel.DeclType{t}
	} else {
		options.EnvOptions, r.self = []cel.EnvOption{cel.Variable("self", cel.DynType)}, nil
	}
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(options)
	if err != nil {
		return nil, err
	}
	env := set.NewExpressionsEnv()
	ast, issues := env.Compile(text)
	if issues != nil {
		return nil, fmt.Errorf("is no valid CEL expression: %s", issues.String())
	}
	if result := kindOf(ast.OutputType()); !assignable(result, destination.kind()) {
		return nil, fmt.Errorf("is of type %s, and the destination of type %s", ast.OutputType(), destination.kind())
	}
	r.program, err = env.Program(ast, cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost), cel.CostLimit(objectCost),
		cel.CostTracking(&library.CostEstimator{}), cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	return readBy(ast.NativeRep()), err
}

// declared returns the type of self, nil if it is any.
func declared(s *schema.Structural) *apiservercel.DeclType {
	if s == nil || s.XPreserveUnknownFields {
		return nil
	}
	t := model.SchemaDeclType(s, false)
	if t == nil {
		return nil
	}
	// With the name self, the type of the field self.a would be self.a, and hide the field.
	return t.MaybeAssignTypeName("typeOfSelf")
}

// kindOf returns the JSON type of the results of a CEL type, empty if they may have several.
func kindOf(t *cel.Type) string {
	switch t.Kind() {
	case types.BoolKind:
		return "boolean"
	case types.IntKind, types.UintKind:
		return "integer"
	case types.DoubleKind:
		return "number"
	case types.StringKind, types.BytesKind, types.TimestampKind, types.DurationKind:
		return "string"
	case types.ListKind:
		return "array"
	case types.MapKind, types.StructKind:
		return "object"
	}
	return ""
}

// value returns the value that the rule makes of a value, and whether there is one.
func (r *rule) value(ctx context.Context, of any, b *budget) (any, bool, error) {
	if r.program == nil {
		out, err := b.copied(of)
		return out, true, err
	}
	var self ref.Val
	if r.self != nil {
		self = schemacel.UnstructuredToVal(of, r.self)
	} else {
		self = types.DefaultTypeAdapter.NativeToValue(of)
	}
	result, details, err := r.program.ContextEval(ctx, map[string]any{"self": self})
	var cancelled interpreter.EvalCancelledError
	switch {
	case ctx.Err() != nil:
		return nil, false, fmt.Errorf("the conversion takes too long: %w", ctx.Err())
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return nil, false, errBudget
	case err != nil:
		return nil, false, err
	}
	if cost := details.ActualCost(); cost != nil {
		if *cost > b.cost {
			return nil, false, errBudget
		}
		b.cost -= *cost
	}
	return b.native(result)
}
