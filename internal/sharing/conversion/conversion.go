// Package conversion converts objects between the versions of a schema by the rules of an
// APIConversion. It hides the expressions: what they see, what they may cost, and how their
// results become fields.
//
// A tenant writes the rules, and others pay for them when they read objects. So each object has
// a budget, and a conversion that exceeds it fails.
package conversion

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	schemas "k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/request/bounds"
	"github.com/unforked/kcp/internal/upstream/merging"
)

const (
	// MaxRules is the maximum of rules and preserved fields of one APIConversion.
	MaxRules = 256
	// maxConversions is the maximum of conversions, and so limits the versions that each written
	// object is converted to.
	maxConversions = 32
	// maxExpressions is the maximum length of all expressions of one APIConversion in bytes.
	maxExpressions = 64 << 10
	// maxBytes is the maximum size of the values that the rules set in one object: about that
	// of the largest object that a client can send.
	maxBytes = 3 << 20
)

// A Conversion converts objects of one schema. It is immutable.
type Conversion struct {
	direct  map[direction]*steps
	storage string // version
}

// A direction is a pair of versions.
type direction struct{ from, to string }

// steps convert objects in one direction.
type steps struct {
	rules    []*rule
	preserve []path     // in the version that objects are converted from
	moved    []path     // those that the other version lacks: fields that are preserved, or that expressions read
	restore  []restored // in the version that they are converted to
	direction
}

// A restored is a field that an earlier conversion in the other direction has preserved.
type restored struct {
	path
	valid validation.SchemaValidator // nil if the field has no schema
}

// Compile returns the conversion of a definition's objects by the rules of an APIConversion. The
// errors name all mistakes.
func Compile(crd *apiextensionsv1.CustomResourceDefinition, spec *apisv1alpha1.APIConversionSpec) (*Conversion, field.ErrorList) {
	c := &Conversion{direct: map[direction]*steps{}}
	at := field.NewPath("spec", "conversions")
	versions := map[string]version{}
	for _, v := range crd.Spec.Versions {
		known, err := newVersion(v.Schema)
		if err != nil {
			return nil, field.ErrorList{field.Invalid(at, v.Name, fmt.Sprintf("the schema of version %s cannot be used: %v", v.Name, err))}
		}
		versions[v.Name] = known
		if v.Storage {
			c.storage = v.Name
		}
	}
	if len(spec.Conversions) > maxConversions {
		return nil, field.ErrorList{field.TooMany(at, len(spec.Conversions), maxConversions)}
	}
	n, length := 0, 0
	for _, v := range spec.Conversions {
		n += len(v.Rules) + len(v.Preserve)
		for _, r := range v.Rules {
			length += len(r.Transformation)
		}
	}
	if n > MaxRules || length > maxExpressions {
		return nil, field.ErrorList{field.Forbidden(at, fmt.Sprintf("has %d rules and preserved fields, with expressions of %d bytes; at most %d and %d bytes are allowed", n, length, MaxRules, maxExpressions))}
	}
	var patterns bounds.Patterns
	for _, v := range spec.Conversions {
		for _, r := range v.Rules {
			if err := patterns.AddCEL(r.Transformation); err != nil {
				return nil, field.ErrorList{field.Forbidden(at, err.Error())}
			}
		}
	}
	var errs field.ErrorList
	for i, v := range spec.Conversions {
		s, wrong := compileSteps(at.Index(i), versions, v)
		errs = append(errs, wrong...)
		c.direct[s.direction] = s
	}
	for _, v := range crd.Spec.Versions {
		for _, d := range []direction{{v.Name, c.storage}, {c.storage, v.Name}} {
			if v.Served && !v.Storage && c.direct[d] == nil {
				errs = append(errs, field.Required(at, fmt.Sprintf("add a conversion from %s to %s: objects are stored in %s, and each served version needs conversions from it and to it", d.from, d.to, c.storage)))
			}
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return c, c.restores(versions)
}

// newVersion returns a version with a schema.
func newVersion(in *apiextensionsv1.CustomResourceValidation) (version, error) {
	props := &apiextensions.JSONSchemaProps{}
	if in == nil || in.OpenAPIV3Schema == nil {
		return version{}, fmt.Errorf("there is none")
	}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(in.OpenAPIV3Schema, props, nil); err != nil {
		return version{}, err
	}
	structural, err := schema.NewStructural(props)
	return version{structural, props}, err
}

func compileSteps(at *field.Path, versions map[string]version, v apisv1alpha1.VersionConversion) (*steps, field.ErrorList) {
	s := &steps{direction: direction{v.From, v.To}}
	var errs field.ErrorList
	for name, in := range map[string]string{"from": v.From, "to": v.To} {
		if _, ok := versions[in]; !ok {
			errs = append(errs, field.Invalid(at.Child(name), in, "the APIResourceSchema has no such version"))
		}
	}
	if v.From == v.To {
		errs = append(errs, field.Invalid(at.Child("to"), v.To, "must be another version than from"))
	}
	if len(errs) > 0 {
		return s, errs
	}
	for i, r := range v.Rules {
		compiled, wrong := compileRule(at.Child("rules").Index(i), versions[v.From], versions[v.To], v, r)
		if errs = append(errs, wrong...); len(wrong) > 0 {
			continue
		}
		for _, other := range s.rules {
			if other.destination.overlaps(compiled.destination) {
				errs = append(errs, field.Invalid(at.Child("rules").Index(i).Child("destination"), r.Destination, fmt.Sprintf("another rule sets %s: set each field once", other.destination)))
			}
		}
		s.rules, s.moved = append(s.rules, compiled), append(s.moved, compiled.reads...)
	}
	for i, text := range v.Preserve {
		p, wrong := parseField(at.Child("preserve").Index(i), versions[v.From], v.From, text)
		errs = append(errs, wrong...)
		if s.preserve = append(s.preserve, p); len(wrong) == 0 && !versions[v.To].has(p) {
			s.moved = append(s.moved, p)
		}
	}
	return s, errs
}

// parseField parses the path of a field of a version.
func parseField(at *field.Path, v version, name, text string) (path, field.ErrorList) {
	p, err := parsePath(text)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(at, text, err.Error())}
	}
	if _, ok := v.at(p); !ok {
		return nil, field.ErrorList{field.Invalid(at, text, fmt.Sprintf("version %s has no such field", name))}
	}
	return p, nil
}

// restores finds the fields that each direction restores: those that the other one preserves.
func (c *Conversion) restores(versions map[string]version) field.ErrorList {
	for d, s := range c.direct {
		back := c.direct[direction{d.to, d.from}]
		if back == nil {
			continue
		}
		for _, p := range back.preserve {
			r := restored{path: p}
			if v, _ := versions[d.to].at(p); v.props != nil {
				valid, _, err := validation.NewSchemaValidator(v.props)
				if err != nil {
					return field.ErrorList{field.Invalid(field.NewPath("spec", "conversions"), p.String(), err.Error())}
				}
				r.valid = valid
			}
			s.restore = append(s.restore, r)
		}
	}
	return nil
}

// Convert returns an object in another version, the apiVersion to. If there are no rules for
// that direction, it converts through the storage version. It does not change o.
func (c *Conversion) Convert(ctx context.Context, o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	gv, err := schemas.ParseGroupVersion(to)
	if err != nil {
		return nil, err
	}
	from := o.GroupVersionKind().Version
	if from == gv.Version {
		return o, nil
	}
	way := []*steps{c.direct[direction{from, gv.Version}]}
	if way[0] == nil {
		way = []*steps{c.direct[direction{from, c.storage}], c.direct[direction{c.storage, gv.Version}]}
	}
	if slices.Contains(way, nil) {
		return nil, fmt.Errorf("the APIConversion does not convert %s to %s; its owner must add these conversions", from, gv.Version)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("the conversion takes too long: %w", err)
	}
	out := o.Object
	b := &budget{cost: objectCost, bytes: maxBytes}
	for _, s := range way {
		if out, err = s.run(ctx, out, b); err != nil {
			return nil, fmt.Errorf("APIConversion from %s to %s: %w", s.from, s.to, err)
		}
	}
	converted := &unstructured.Unstructured{Object: out}
	converted.SetAPIVersion(to)
	return converted, nil
}

// run converts an object in one direction. Fields without a rule stay as they are: those that
// the other version lacks are pruned later, as for any object. Server-side apply does not prune, and
// fails for them; so fields that have moved do not stay.
func (s *steps) run(ctx context.Context, in map[string]any, b *budget) (map[string]any, error) {
	out := runtime.DeepCopyJSON(in)
	for _, r := range s.rules {
		if r.moves {
			r.source.remove(out)
		}
	}
	for _, p := range s.moved {
		p.remove(out)
	}
	for _, r := range s.rules {
		value, found := r.source.get(in)
		if !found {
			continue
		}
		value, set, err := r.value(ctx, value, b)
		if err != nil {
			return nil, fmt.Errorf("rule for %s: %w", r.destination, err)
		}
		if set {
			r.destination.set(out, value)
		}
	}
	s.reset(out)
	return out, s.keep(in, out)
}

// reset sets the preserved fields from the annotation that has them, unless they are set. A
// consumer can write the annotation: values that the schema refuses are dropped.
func (s *steps) reset(out map[string]any) {
	o := &unstructured.Unstructured{Object: out}
	key := apisv1alpha1.PreserveAnnotationPrefix + s.to
	has := merging.TakeParts(o, key)
	annotations := o.GetAnnotations()
	text, found := annotations[key]
	if !found {
		return
	}
	delete(annotations, key)
	if len(annotations) == 0 {
		annotations = nil
	}
	o.SetAnnotations(annotations)
	kept := map[string]any{}
	if err := utiljson.Unmarshal([]byte(text), &kept); err != nil {
		return
	}
	for _, r := range s.restore {
		value, found := kept[r.path.String()]
		if _, set := r.path.get(out); !found || set || !has(r.path.String()) {
			continue
		}
		if r.valid == nil || len(validation.ValidateCustomResource(nil, value, r.valid)) == 0 {
			r.path.set(out, value)
		}
	}
}

// keep writes the fields to preserve to an annotation.
func (s *steps) keep(in, out map[string]any) error {
	kept := map[string]any{}
	for _, p := range s.preserve {
		if value, found := p.get(in); found {
			kept[p.String()] = value
		}
	}
	if len(kept) == 0 {
		return nil
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	o := &unstructured.Unstructured{Object: out}
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	key := apisv1alpha1.PreserveAnnotationPrefix + s.from
	annotations[key] = string(text)
	o.SetAnnotations(annotations)
	if merging.Possible(o) {
		merging.NameParts(o, key, slices.Collect(maps.Keys(kept)))
	}
	return nil
}
