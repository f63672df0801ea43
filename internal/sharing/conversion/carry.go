package conversion

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// carriedPrefix begins the keys of the annotations of carried fields.
const carriedPrefix = "carried.conversion.apis.kcp.io/"

// A carried is a field that a version lacks. Server-side apply converts an object to the versions of all
// managers and back, and removes fields on the way. It refuses fields that a version lacks, and would lose
// fields that the conversion drops. So each such field is in an annotation of its own meanwhile: if apply
// removes the field, it removes the annotation. No client gets these annotations, and none is stored.
type carried struct {
	Path  []step `json:"path"`
	Value any    `json:"value"`
}

// A step leads to a field of an object, or to an item of a list.
type step struct {
	Field string `json:"field,omitempty"`
	// Keys select an item of a list with the type map.
	Keys map[string]any `json:"keys,omitempty"`
	// Made is true if the other version has no such list: the item is made again.
	Made bool `json:"made,omitempty"`
	// Element is true for an element of a list with the type set, which the value is.
	Element bool `json:"element,omitempty"`
}

// carry moves carried fields that the target has from annotations to the object, and fields that it
// lacks to annotations.
func (s *steps) carry(out map[string]any) error {
	o := &unstructured.Unstructured{Object: out}
	annotations := maps.Clone(o.GetAnnotations())
	for key, text := range o.GetAnnotations() {
		if !strings.HasPrefix(key, carriedPrefix) {
			continue
		}
		var c carried
		if err := utiljson.Unmarshal([]byte(text), &c); err == nil && knows(s.target, c.Path) {
			restoreAt(out, c.Path, c.Value)
			delete(annotations, key)
		}
	}
	var all []carried
	take(out, s.source, s.target, nil, func(c carried) { all = append(all, c) })
	for _, c := range all {
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		at, err := json.Marshal(c.Path)
		if err != nil {
			return err
		}
		if c.Path[len(c.Path)-1].Element {
			at = text
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[fmt.Sprintf("%s%x", carriedPrefix, sha256.Sum224(at))] = string(text)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	o.SetAnnotations(annotations)
	return nil
}

// take removes the fields of a value that the target lacks, and passes them to found. An atomic list
// with such fields stays as it is, because its items have no identity.
func take(value any, source, target *schema.Structural, at []step, found func(carried)) {
	if target.XPreserveUnknownFields || source == nil {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if (len(at) == 0 || target.XEmbeddedResource) && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name) {
				continue
			}
			into, from, here := child(target, name), child(source, name), append(slices.Clone(at), step{Field: name})
			if into == nil {
				leaves(value[name], from, here, found)
				delete(value, name)
				continue
			}
			take(value[name], from, into, here, found)
		}
	case []any:
		keys := keysOf(source)
		if keys == nil || target.Items == nil || !slices.Equal(keys, keysOf(target)) {
			return
		}
		for _, item := range value {
			take(item, source.Items, target.Items, append(slices.Clone(at), step{Keys: keyed(item, keys)}), found)
		}
	}
}

// leaves passes the parts of a value that have owners of their own.
func leaves(value any, source *schema.Structural, at []step, found func(carried)) {
	atomic := source == nil || source.XMapType != nil && *source.XMapType == "atomic"
	switch value := value.(type) {
	case map[string]any:
		if atomic || len(value) == 0 {
			break
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			leaves(value[name], child(source, name), append(slices.Clone(at), step{Field: name}), found)
		}
		return
	case []any:
		if atomic || len(value) == 0 {
			break
		}
		keys := keysOf(source)
		if keys == nil && (source.XListType == nil || *source.XListType != "set") {
			break
		}
		for _, item := range value {
			if keys == nil {
				found(carried{append(slices.Clone(at), step{Element: true}), item})
			} else {
				leaves(item, source.Items, append(slices.Clone(at), step{Keys: keyed(item, keys), Made: true}), found)
			}
		}
		return
	}
	found(carried{at, value})
}

// child returns the schema of a field, nil if there is none.
func child(s *schema.Structural, name string) *schema.Structural {
	if s == nil {
		return nil
	}
	if property, ok := s.Properties[name]; ok {
		return &property
	}
	switch more := s.AdditionalProperties; {
	case more != nil && more.Structural != nil:
		return more.Structural
	case more != nil && more.Bool, s.XPreserveUnknownFields:
		return &schema.Structural{Extensions: schema.Extensions{XPreserveUnknownFields: true}}
	}
	return nil
}

// keysOf returns the keys of the items of a list, nil if they have none.
func keysOf(s *schema.Structural) []string {
	if s == nil || s.Items == nil || s.XListType == nil || *s.XListType != "map" {
		return nil
	}
	return s.XListMapKeys
}

func keyed(item any, keys []string) map[string]any {
	out := map[string]any{}
	fields, _ := item.(map[string]any)
	for _, key := range keys {
		if value, ok := fields[key]; ok {
			out[key] = value
		}
	}
	return out
}

// knows reports whether objects of a schema can have a field.
func knows(s *schema.Structural, at []step) bool {
	for _, to := range at {
		switch {
		case s == nil:
			return false
		case to.Field != "":
			s = child(s, to.Field)
		default:
			s = s.Items
		}
	}
	return s != nil
}

// restoreAt sets a field, unless it is set or an item on the way is gone. It returns the changed value.
func restoreAt(value any, at []step, restored any) any {
	if len(at) == 0 {
		if value == nil {
			return restored
		}
		return value
	}
	to := at[0]
	if to.Field != "" {
		fields, ok := value.(map[string]any)
		if !ok {
			fields = map[string]any{}
		}
		if next := restoreAt(fields[to.Field], at[1:], restored); next != nil {
			fields[to.Field] = next
		}
		return fields
	}
	items, _ := value.([]any)
	if to.Element {
		return append(items, restored)
	}
	is := func(item any) bool {
		fields, ok := item.(map[string]any)
		for key, want := range to.Keys {
			ok = ok && fields[key] == want
		}
		return ok
	}
	i := slices.IndexFunc(items, is)
	switch {
	case i < 0 && !to.Made:
		return value
	case i < 0:
		i, items = len(items), append(items, map[string]any{})
	}
	items[i] = restoreAt(items[i], at[1:], restored)
	return items
}
