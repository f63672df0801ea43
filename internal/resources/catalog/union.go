package catalog

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
)

// Parts are the contents with which several clusters are served one resource.
type Parts struct {
	// Contents are the contents, the newest first.
	Contents []*Content
	// Of returns the index of the content of a cluster. It always returns the same for a cluster.
	Of func(cluster.Name) int
	// Key identifies the function Of.
	Key string
}

// Union returns a content to read the objects of all clusters of a resource. It has the versions of
// all parts. Each object is read with the part of its cluster. If a webhook converts the objects of
// a part, they are all read with the first part instead, and keep the fields that it lacks. Where the
// descriptions of a version differ, the first part decides.
func Union(p *Parts) (*Content, error) {
	first := p.Contents[0]
	crd, err := first.Whole()
	if err != nil {
		return nil, err
	}
	external := slices.ContainsFunc(p.Contents, func(c *Content) bool { return CallsWebhook(c.Definition) })
	for _, c := range p.Contents[1:] {
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
			v.Served = v.Served && (!external || first.rules == nil) // the rules of the first do not know the version
			crd.Spec.Versions = append(crd.Spec.Versions, v)
		}
	}
	if len(crd.Spec.Versions) > 1 && crd.Spec.Conversion == nil {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	}
	for _, v := range crd.Spec.Versions {
		if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			keepUnknown(v.Schema.OpenAPIV3Schema)
			if !external { // those of the part of an object count
				WithoutDefaults(v.Schema.OpenAPIV3Schema)
			}
		}
	}
	union, err := NewContent(crd)
	switch {
	case err != nil || external && first.rules == nil:
		return union, err
	case external:
		return first.rules.Of(union), nil
	}
	union.parts = p
	text := []byte(p.Key)
	for _, c := range p.Contents {
		text = append(text, c.Hash[:]...)
	}
	union.rehash(text)
	union.Definition.UID = types.UID(fmt.Sprintf("%x", union.Hash))
	return union, nil
}

// Parts returns the contents with which the objects of a union are read, nil for any other content.
func (c *Content) Parts() *Parts { return c.parts }

// Ruled reports whether the server itself converts the objects of a content, with rules.
func (c *Content) Ruled() bool { return c.rules != nil || c.parts != nil }

// WithoutDefaults removes the defaults from a schema.
func WithoutDefaults(s *apiextensionsv1.JSONSchemaProps) {
	EachSchema(s, func(s *apiextensionsv1.JSONSchemaProps) { s.Default = nil })
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
