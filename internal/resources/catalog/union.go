package catalog

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Union returns a content to read objects of several contents of one resource: it has the versions
// of all, and keeps all fields. Where they differ, the first content decides.
func Union(first *Content, others ...*Content) (*Content, error) {
	crd, err := first.Whole()
	if err != nil {
		return nil, err
	}
	for _, c := range others {
		other, err := c.Whole()
		if err != nil {
			return nil, err
		}
		for _, v := range other.Spec.Versions {
			same := func(of apiextensionsv1.CustomResourceDefinitionVersion) bool { return of.Name == v.Name }
			i := slices.IndexFunc(crd.Spec.Versions, same)
			if i >= 0 {
				crd.Spec.Versions[i].Served = crd.Spec.Versions[i].Served || v.Served
				continue
			}
			v.Storage = false
			v.Served = v.Served && first.rules == nil // the rules do not know the version
			crd.Spec.Versions = append(crd.Spec.Versions, v)
		}
	}
	if len(crd.Spec.Versions) > 1 && crd.Spec.Conversion == nil {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	}
	for _, v := range crd.Spec.Versions {
		if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			keepUnknown(v.Schema.OpenAPIV3Schema)
		}
	}
	union, err := NewContent(crd)
	if err != nil || first.rules == nil {
		return union, err
	}
	return first.rules.Of(union), nil
}

// keepUnknown makes a schema of whole objects keep all fields.
func keepUnknown(s *apiextensionsv1.JSONSchemaProps) {
	EachSchema(s, func(s *apiextensionsv1.JSONSchemaProps) {
		if s.AdditionalProperties == nil && (s.Type == "object" || len(s.Properties) > 0) {
			s.XPreserveUnknownFields = new(true)
		}
	})
	if meta, ok := s.Properties["metadata"]; ok { // which has fields of its own
		meta.XPreserveUnknownFields = nil
		s.Properties["metadata"] = meta
	}
}

// EachSchema calls f with a schema and all schemas of its parts that can have defaults, or unknown
// fields.
func EachSchema(s *apiextensionsv1.JSONSchemaProps, f func(*apiextensionsv1.JSONSchemaProps)) {
	if s == nil {
		return
	}
	f(s)
	for name, p := range s.Properties {
		EachSchema(&p, f)
		s.Properties[name] = p
	}
	if s.Items != nil {
		EachSchema(s.Items.Schema, f)
	}
	if s.AdditionalProperties != nil {
		EachSchema(s.AdditionalProperties.Schema, f)
	}
}
