package conformance

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// crdSchema is an OpenAPI schema of a CRD.
type crdSchema map[string]any

// properties returns the names of the properties, sorted, and their schemas.
func (s crdSchema) properties() ([]string, map[string]any) {
	p, _ := s["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(p)), p
}

func (s crdSchema) required() []any { r, _ := s["required"].([]any); return r }

func (s crdSchema) number(key string) (float64, bool) { n, ok := s[key].(float64); return n, ok }

// minimal returns a value with only the fields that the schema requires. It is not always
// valid, because minimal ignores CEL rules, for example.
func (s crdSchema) minimal() any {
	if enum, _ := s["enum"].([]any); len(enum) > 0 {
		return enum[0]
	}
	switch s["type"] {
	case "object":
		out := map[string]any{}
		_, p := s.properties()
		for _, r := range s.required() {
			if child, ok := p[r.(string)].(map[string]any); ok {
				out[r.(string)] = crdSchema(child).minimal()
			}
		}
		if least, _ := s.number("minProperties"); least > 0 && len(out) == 0 {
			if extra, ok := s["additionalProperties"].(map[string]any); ok {
				out["a"] = crdSchema(extra).minimal()
			}
		}
		return out
	case "array":
		items, _ := s["items"].(map[string]any)
		out := []any{}
		for least, _ := s.number("minItems"); len(out) < int(least); {
			out = append(out, crdSchema(items).minimal())
		}
		return out
	case "string":
		return s.text()
	case "integer", "number":
		if least, ok := s.number("minimum"); ok {
			return least
		}
		return 1.0
	case "boolean":
		return true
	}
	if s["x-kubernetes-int-or-string"] == true {
		return 1.0
	}
	return map[string]any{}
}

// text returns a string that the schema allows, if one of a few candidates matches.
func (s crdSchema) text() string {
	switch s["format"] {
	case "date-time":
		return "2026-01-02T03:04:05Z"
	case "byte":
		return "YQ=="
	}
	least, _ := s.number("minLength")
	pattern, _ := s["pattern"].(string)
	valid := regexp.MustCompile("") // also for patterns that Go does not support
	if p, err := regexp.Compile(pattern); err == nil {
		valid = p
	}
	for _, try := range []string{"a", "example.com", "1", "10s", "a/b", "/a", "A", "1.2.3", "v1.2.3", "10Gi", "10.0.0.0/8",
		"10.0.0.1", "http://example.com", "example.com/a", "True", "True=1", "#/a", "sha256:" + strings.Repeat("a", 64)} {
		if len(try) >= int(least) && valid.MatchString(try) {
			return try
		}
	}
	return strings.Repeat("a", max(1, int(least)))
}

// mutation is an object that differs from the minimal one in one place.
type mutation struct {
	name   string
	object any
}

// mutations returns a valid and an invalid mutation for each constraint of a schema, at any
// depth.
func mutations(s crdSchema) []mutation {
	var out []mutation
	mutate(s, "", 0, func(name string, v any) {
		out = append(out, mutation{name: name, object: v})
	}, func(v any) any { return v })
	return out
}

// mutate adds the mutations of the value at path. in returns a copy of the minimal object with
// another value at path.
func mutate(s crdSchema, path string, depth int, add func(string, any), in func(any) any) {
	for _, v := range wrong(s) {
		add(path+" "+v.name, in(v.object))
	}
	if depth > 12 {
		return
	}
	if items, ok := s["items"].(map[string]any); ok {
		mutate(items, path+"[]", depth+1, add, func(v any) any { return in([]any{v}) })
	}
	if extra, ok := s["additionalProperties"].(map[string]any); ok {
		mutate(extra, path+"{}", depth+1, add, func(v any) any { return in(map[string]any{"a": v}) })
	}
	names, properties := s.properties()
	for _, name := range names {
		child, ok := properties[name].(map[string]any)
		if !ok || depth == 0 && (name == "apiVersion" || name == "kind" || name == "metadata") {
			continue
		}
		put := func(v any) any {
			around, _ := s.minimal().(map[string]any)
			around[name] = v
			return in(around)
		}
		add(path+"."+name+" is there", put(crdSchema(child).minimal()))
		mutate(child, path+"."+name, depth+1, add, put)
	}
}

// wrong returns values that the server should refuse, prune or warn about.
func wrong(s crdSchema) []mutation {
	out := []mutation{{"is null", nil}}
	switch s["type"] {
	case "object":
		whole, _ := s.minimal().(map[string]any)
		out = append(out, mutation{"is no object", "text"}, mutation{"has an unknown field", with(whole, "unknownField", 1.0)})
		for _, r := range s.required() {
			less := maps.Clone(whole)
			delete(less, r.(string))
			out = append(out, mutation{fmt.Sprintf("lacks %s", r), less})
		}
	case "array":
		items, _ := s["items"].(map[string]any)
		one := crdSchema(items).minimal()
		out = append(out, mutation{"is no array", "text"}, mutation{"is empty", []any{}}, mutation{"has two that are equal", []any{one, one}})
		if most, ok := s.number("maxItems"); ok && most <= 64 {
			out = append(out, mutation{"is too long", slices.Repeat([]any{one}, int(most)+1)})
		}
	case "string":
		out = append(out, mutation{"is no string", 7.0}, mutation{"is empty", ""}, mutation{"is strange", " *§ "})
		if most, ok := s.number("maxLength"); ok && most <= 4096 {
			out = append(out, mutation{"is too long", strings.Repeat("a", int(most)+1)})
		}
	case "integer", "number":
		out = append(out, mutation{"is no number", "text"}, mutation{"is a fraction", 1.5},
			mutation{"is small", -1e6}, mutation{"is large", 1e12})
	case "boolean":
		out = append(out, mutation{"is no boolean", "true"})
	default:
		out = append(out, mutation{"is an array", []any{1.0}})
	}
	return out
}

func with(m map[string]any, key string, v any) map[string]any {
	out := maps.Clone(m)
	out[key] = v
	return out
}

// spread returns at most n elements, evenly distributed.
func spread[T any](all []T, n int) []T {
	if len(all) <= n {
		return all
	}
	var out []T
	for i := range n {
		out = append(out, all[i*len(all)/n])
	}
	return out
}

func TestMutations(t *testing.T) {
	s := crdSchema{"type": "object", "required": []any{"spec"}, "properties": map[string]any{
		"kind": map[string]any{"type": "string"},
		"spec": map[string]any{"type": "object", "required": []any{"size"}, "properties": map[string]any{
			"size":  map[string]any{"type": "integer", "minimum": 3.0},
			"color": map[string]any{"type": "string", "enum": []any{"red"}},
		}},
	}}
	got := map[string]string{}
	for _, m := range mutations(s) {
		got[m.name] = fmt.Sprint(m.object)
	}
	for name, want := range map[string]string{
		" lacks spec":                "map[]",
		".spec lacks size":           "map[spec:map[]]",
		".spec.color is there":       "map[spec:map[color:red size:3]]",
		".spec.color is no string":   "map[spec:map[color:7 size:3]]",
		".spec has an unknown field": "map[spec:map[size:3 unknownField:1]]",
		".spec.size is no number":    "map[spec:map[size:text]]",
		".spec.size is there":        "map[spec:map[size:3]]",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}
