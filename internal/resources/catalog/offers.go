package catalog

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// nativeSchema stands for the name of an APIResourceSchema where there is none, and begins the UID.
// The UIDs of objects are random and have another form.
const nativeSchema = "native"

// NativeSchema returns what a binding has in place of the name and UID of an APIResourceSchema for
// a resource of [Offers].
func NativeSchema(gr schema.GroupResource) (name, uid string) {
	return nativeSchema, nativeSchema + ":" + DefinitionName(gr)
}

// IsNativeSchema reports whether a UID is one of [NativeSchema].
func IsNativeSchema(uid string) bool { return strings.HasPrefix(uid, nativeSchema+":") }

// An Offer is a resource with a registry of Kubernetes that clusters have only through bindings.
type Offer struct {
	schema.GroupResource
	// Names are those that discovery has; Singular, ListKind and Plural may be empty.
	Names apiextensionsv1.CustomResourceDefinitionNames
	// ClusterScoped objects are in no namespace.
	ClusterScoped bool
	// Versions are served, and objects are stored in the first one.
	Versions []string
	// Status and Scale are true if it has these subresources.
	Status, Scale bool
}

// Offers are the resources with registries of Kubernetes that clusters have only through bindings.
// The registries are built for the first request; until then they take neither memory nor
// goroutines. Their objects are stored as JSON under the identity of the export, like custom
// resources: one registry serves the exports of all providers.
type Offers struct {
	names    []string // in the form of [DefinitionName], sorted
	contents map[schema.GroupResource]func() *Content
	built    func() (*genericapiserver.GenericAPIServer, error)
}

// NewOffers returns offers, whose registries build installs.
func NewOffers(all []Offer, build func() (*genericapiserver.GenericAPIServer, error)) *Offers {
	o := &Offers{contents: map[schema.GroupResource]func() *Content{}}
	for _, of := range all {
		o.names = append(o.names, DefinitionName(of.GroupResource))
		o.contents[of.GroupResource] = sync.OnceValue(func() *Content { return o.content(of) })
	}
	slices.Sort(o.names)
	o.built = sync.OnceValues(build)
	return o
}

// Names returns the offered resources, such as "deployments.apps".
func (o *Offers) Names() []string { return o.names }

// Find returns the content of a resource.
func (o *Offers) Find(gr schema.GroupResource) (*Content, bool) {
	if of, ok := o.contents[gr]; ok {
		return of(), true
	}
	return nil, false
}

// FindSchema returns the content of a resource by the UID that [NativeSchema] returns for it.
func (o *Offers) FindSchema(uid string) (*Content, bool) {
	return o.Find(ResourceOfName(strings.TrimPrefix(uid, nativeSchema+":")))
}

// Registries returns the server that has the registries. The first call builds it.
func (o *Offers) Registries() (*genericapiserver.GenericAPIServer, error) { return o.built() }

// Refuse returns why a resource cannot be exported, nil if it can.
func (o *Offers) Refuse(gr schema.GroupResource) error {
	if _, ok := o.contents[gr]; ok {
		return nil
	}
	if len(o.names) == 0 {
		return fmt.Errorf("this server has no native kinds to export, so %s cannot have storage.native", gr)
	}
	return fmt.Errorf("this server has no native kind %s to export: it offers %s", gr, strings.Join(o.names, ", "))
}

// content returns the content of an offer. Its schema specifies nothing: the registry has the
// types.
func (o *Offers) content(of Offer) *Content {
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: of.Group, Names: of.Names, Scope: apiextensionsv1.NamespaceScoped,
	}}
	crd.Name = DefinitionName(of.GroupResource)
	crd.Spec.Names.Plural = of.Resource
	if of.ClusterScoped {
		crd.Spec.Scope = apiextensionsv1.ClusterScoped
	}
	sub := &apiextensionsv1.CustomResourceSubresources{}
	if of.Status {
		sub.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
	}
	if of.Scale {
		sub.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
	}
	for i, v := range of.Versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v, Served: true, Storage: i == 0, Subresources: sub,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
		})
	}
	c, err := NewContent(crd)
	if err != nil {
		panic(fmt.Sprintf("offer of %s: %v", of.GroupResource, err)) // never happens: it encodes
	}
	return c.offeredBy(o)
}

// offeredBy makes c a content that registries serve. Its hash differs from that of an equal
// definition of a tenant.
func (c *Content) offeredBy(o *Offers) *Content {
	c.offers = o
	c.rehash([]byte(nativeSchema))
	return c
}

// Offers returns the offers whose registry serves the content, nil for a custom resource.
func (c *Content) Offers() *Offers { return c.offers }

// Native reports whether a registry of Kubernetes serves the content.
func (c *Content) Native() bool { return c.offers != nil }
