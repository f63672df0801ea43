package conversion

import (
	"errors"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// A path is the names of the fields that lead to a field, from the root of an object.
type path []string

// parsePath parses a path such as "spec.size" or ".spec.size".
func parsePath(text string) (path, error) {
	p := path(strings.Split(strings.TrimPrefix(text, "."), "."))
	switch {
	case slices.Contains(p, ""):
		return nil, errors.New("must be names of fields with dots between them, such as spec.size")
	case p[0] == "apiVersion", p[0] == "kind", p[0] == "metadata":
		return nil, errors.New("must not be in apiVersion, kind or metadata, which are the same in all versions")
	}
	return p, nil
}

func (p path) String() string { return strings.Join(p, ".") }

// overlaps reports whether one of the paths leads into the field of the other.
func (p path) overlaps(other path) bool {
	n := min(len(p), len(other))
	return slices.Equal(p[:n], other[:n])
}

// get returns the value of the field, and whether there is one.
func (p path) get(o map[string]any) (any, bool) {
	var at any = o
	for _, name := range p {
		fields, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = fields[name]; !ok {
			return nil, false
		}
	}
	return at, true
}

// set sets the field. It makes the fields that lead to it, where there are no objects.
func (p path) set(o map[string]any, value any) {
	for _, name := range p[:len(p)-1] {
		next, ok := o[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			o[name] = next
		}
		o = next
	}
	o[p[len(p)-1]] = value
}

// remove removes the field.
func (p path) remove(o map[string]any) {
	if parent, ok := p[:len(p)-1].get(o); ok {
		if fields, ok := parent.(map[string]any); ok {
			delete(fields, p[len(p)-1])
		}
	}
}

// A version is the schema of one version, in the two forms that the libraries need.
type version struct {
	structural *schema.Structural
	props      *apiextensions.JSONSchemaProps
}

// at returns the schema of a field, and whether objects can have the field. It has no schema
// if the fields of the version are not specified there.
func (v version) at(p path) (version, bool) {
	for _, name := range p {
		property, ok := v.structural.Properties[name]
		additional := v.structural.AdditionalProperties
		switch {
		case ok:
			props := v.props.Properties[name]
			v = version{&property, &props}
		case additional != nil && additional.Structural != nil:
			v = version{additional.Structural, v.props.AdditionalProperties.Schema}
		case v.structural.XPreserveUnknownFields, additional != nil && additional.Bool:
			return version{}, true
		default:
			return version{}, false
		}
	}
	return v, true
}

// has reports whether objects can have the field.
func (v version) has(p path) bool {
	_, ok := v.at(p)
	return ok
}

// kind returns the JSON type of the values, empty if they have several or any.
func (v version) kind() string {
	if v.structural == nil || v.structural.XIntOrString {
		return ""
	}
	return v.structural.Type
}
