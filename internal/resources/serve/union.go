package serve

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/upstream"
	"github.com/unforked/kcp/internal/upstream/merging"
)

// A union reads the objects of several contents of a resource. Each object has the annotation of its
// cluster when it is decoded, which tells its content.
type union struct {
	readers []*partReader
	of      func(cluster.Name) int
}

// A partReader reads the objects of one content of a union.
type partReader struct {
	versions map[string]*structural.Structural
	rules    *ruled // nil if versions differ in nothing but their fields
}

// newUnion compiles the schemas and the rules of all parts.
func (p *Pool) newUnion(parts *catalog.Parts) (*union, error) {
	u := &union{of: parts.Of}
	for _, c := range parts.Contents {
		crd, err := c.Whole()
		if err != nil {
			return nil, err
		}
		r := &partReader{versions: map[string]*structural.Structural{}}
		for _, v := range crd.Spec.Versions {
			if r.versions[v.Name], err = structuralOf(crd, v.Name); err != nil {
				return nil, err
			}
		}
		if rules := c.Rules(); rules != nil {
			r.rules = p.newRuled(crd, rules)
			r.rules.hash = sha256.Sum256(slices.Concat([]byte("union"), r.rules.hash[:])) // results are pruned
		}
		u.readers = append(u.readers, r)
	}
	return u, nil
}

// structuralOf returns the structural schema of a version of a definition.
func structuralOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*structural.Structural, error) {
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), &internal, nil); err != nil {
		return nil, err
	}
	of, err := apiextensions.GetSchemaForVersion(&internal, version)
	if err != nil {
		return nil, err
	}
	if of == nil || of.OpenAPIV3Schema == nil {
		return nil, errors.New("no schema")
	}
	s, err := structural.NewStructural(of.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	s = s.DeepCopy() // pruning must not change the defaults of the definition
	return s, defaulting.PruneDefaults(s)
}

// reader returns the reader of an object.
func (u *union) reader(o *unstructured.Unstructured) *partReader {
	return u.readers[u.of(cluster.Of(o))]
}

// stored completes an object that was decoded in the version that it is stored in, as upstream does.
func (r *partReader) stored(o *unstructured.Unstructured) {
	if s := r.versions[o.GroupVersionKind().Version]; s != nil {
		r.prune(o)
		defaulting.Default(o.Object, s)
	}
}

// prune removes the fields that the version of an object does not have.
func (r *partReader) prune(o *unstructured.Unstructured) {
	if s := r.versions[o.GroupVersionKind().Version]; s != nil {
		pruning.Prune(o.Object, s, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(o.Object, s)
	}
}

// convert converts an object. Other contents may have versions that the one of the object lacks. In
// these, it has the fields that it is stored with.
func (r *partReader) convert(by catalog.Convert, o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	gv, err := schema.ParseGroupVersion(to)
	if err != nil {
		return nil, err
	}
	known := r.versions[o.GroupVersionKind().Version] != nil && r.versions[gv.Version] != nil
	if by != nil && known {
		if o, err = by(o, to); err != nil {
			return nil, err
		}
		if annotations := o.GetAnnotations(); merging.DropParts(annotations) { // a union is only read
			o.SetAnnotations(annotations)
		}
	}
	o.SetAPIVersion(to)
	r.prune(o)
	return o, nil
}

// A unionCall converts the objects of one call.
type unionCall struct {
	*union
	begun map[*partReader]catalog.Convert
	ends  []func()
}

// convert converts an object in JSON. An object that is alone in a call may have been converted before.
func (c *unionCall) convert(text []byte, to string, alone bool) ([]byte, error) {
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	r := c.reader(&o)
	if r.rules != nil && c.begun[r] == nil {
		by, end := r.rules.begin()
		c.begun[r], c.ends = by, append(c.ends, end)
	}
	one := func() ([]byte, error) {
		converted, err := r.convert(c.begun[r], &o, to)
		if err != nil {
			return nil, err
		}
		return converted.MarshalJSON()
	}
	if r.rules != nil && alone {
		return r.rules.once(text, to, one)
	}
	return one()
}

// end ends the call.
func (c *unionCall) end() {
	for _, end := range c.ends {
		end()
	}
}

// buildUnion builds a handler of a union, which is only read.
func (p *Pool) buildUnion(d *upstream.Definition, parts *catalog.Parts) (http.Handler, error) {
	u, err := p.newUnion(parts)
	if err != nil {
		return nil, err
	}
	from := unionStorage{p.config.Storage, u}
	if d.CRD.Spec.Group == "" {
		return p.buildCore(d, from) // it has one version
	}
	return p.definitionHandler(d, from, converts(converting{union: u})).New()
}

// unionStorage is a storage whose objects are decoded with a union.
type unionStorage struct {
	generic.RESTOptionsGetter
	union *union
}

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (s unionStorage) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := s.RESTOptionsGetter.GetRESTOptions(gr, example)
	if err == nil {
		of := *o.StorageConfig
		of.Codec = unionCodec{of.Codec, s.union}
		o.StorageConfig = &of
	}
	return o, err
}

// unionCodec decodes objects as their contents do, without conversion.
type unionCodec struct {
	runtime.Codec
	union *union
}

// Decode implements [runtime.Decoder].
func (c unionCodec) Decode(data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o, got, err := c.Codec.Decode(data, kind, into)
	if u, ok := o.(*unstructured.Unstructured); ok && err == nil {
		c.union.reader(u).stored(u)
	}
	return o, got, err
}
