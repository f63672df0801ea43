package serve

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/upstream"
)

// An Inspector reads and validates stored objects as a content would, which need not be served
// anywhere. It does so with the codecs and strategies of upstream's handlers, which serve the
// requests.
type Inspector struct {
	// Storage is the version in which objects are written.
	Storage string
	// External is true if a webhook converts objects. The inspector does not call it, and reads
	// objects only in the version that they are stored in.
	External bool

	group    string
	all      []string // versions
	versions map[string]inspected
}

type inspected struct {
	served   bool
	codec    runtime.Codec
	strategy rest.RESTCreateStrategy
}

// Inspect returns the inspector of a content. If bare is true, it reads objects without the
// defaults of the schema.
func (p *Pool) Inspect(c *catalog.Content, bare bool) (in *Inspector, err error) {
	defer func() {
		if r := recover(); r != nil { // a schema of a tenant must not crash the server
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	defer upstream.ForgetPatterns()
	crd, err := c.Whole()
	if err != nil {
		return nil, err
	}
	gr := c.GroupResource()
	crd.Name = gr.Resource + "." + gr.Group // the name that upstream looks up, also in the core group
	in = &Inspector{group: gr.Group, versions: map[string]inspected{}, External: catalog.CallsWebhook(crd)}
	var calls webhook.AuthenticationInfoResolverWrapper
	switch {
	case in.External:
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	case c.Rules() != nil:
		rules := p.newRuled(crd, c.Rules())
		if rules.err != nil {
			return nil, rules.err
		}
		rules.cache = recent.New[convertedKey, []byte](1, convertedIdle) // the cache of the pool is for objects that are read again
		catalog.InProcess(crd)
		calls = converts(converting{rules: rules})
	}
	if bare {
		withoutDefaults(crd)
	}
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			in.Storage = v.Name
		}
		of, err := p.inspect(crd, v.Name, calls)
		if err != nil {
			return nil, err
		}
		of.served = v.Served
		in.all, in.versions[v.Name] = append(in.all, v.Name), of
	}
	return in, nil
}

// inspect builds upstream's handler of a definition as if a version were its storage version,
// and returns the parts that read and validate in that version.
func (p *Pool) inspect(crd *apiextensionsv1.CustomResourceDefinition, version string, calls webhook.AuthenticationInfoResolverWrapper) (inspected, error) {
	crd = crd.DeepCopy()
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Storage = crd.Spec.Versions[i].Name == version
	}
	h, err := p.definitionHandler(&upstream.Definition{CRD: crd}, nowhere{}, calls).New()
	if err != nil {
		return inspected{}, err
	}
	objects, err := upstream.Objects(h, crd)
	if err != nil {
		return inspected{}, err
	}
	of := inspected{codec: objects.Storage.Codec, strategy: objects.CreateStrategy}
	if crd.Spec.Group != "" {
		of.strategy = named(crd, of.strategy)
		return of, nil
	}
	strategies, err := newCoreStrategies(crd, objects.CreateStrategy)
	if err != nil {
		return inspected{}, err
	}
	of.strategy = named(crd, strategies.objects)
	return of, nil
}

// withoutDefaults removes the defaults from the schemas of a definition.
func withoutDefaults(crd *apiextensionsv1.CustomResourceDefinition) {
	for _, v := range crd.Spec.Versions {
		if v.Schema != nil {
			catalog.WithoutDefaults(v.Schema.OpenAPIV3Schema)
		}
	}
}

// nowhere are the options of a storage that is never used. Its codec reads plain JSON.
type nowhere struct{}

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (nowhere) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{
		StorageConfig:  storagebackend.NewDefaultConfig("/", unstructured.UnstructuredJSONScheme).ForResource(gr),
		ResourcePrefix: gr.String(),
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return nil, func() {}, nil
		},
	}, nil
}

// In returns the versions in which an object that is stored in a version can be read.
func (i *Inspector) In(stored schema.GroupVersion) ([]string, error) {
	if _, known := i.versions[stored.Version]; stored.Group != i.group || !known {
		return nil, fmt.Errorf("the object is stored in version %s, which the schema does not have", stored.Version)
	}
	if i.External {
		return []string{stored.Version}, nil
	}
	return i.all, nil
}

// Has reports whether there is a version, and whether it is served.
func (i *Inspector) Has(version string) (known, served bool) {
	v, known := i.versions[version]
	return known, v.served
}

// Read returns the object in a stored JSON as it is in a version that In returned.
func (i *Inspector) Read(text []byte, version string) (*unstructured.Unstructured, error) {
	out, err := runtime.Decode(i.versions[version].codec, text)
	if err != nil {
		return nil, err
	}
	o, ok := out.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is no custom resource", out)
	}
	return o, nil
}

// Validate returns what is wrong with an object that Read returned for a version.
func (i *Inspector) Validate(ctx context.Context, o *unstructured.Unstructured, version string) field.ErrorList {
	return i.versions[version].strategy.Validate(ctx, o)
}
