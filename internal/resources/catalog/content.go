// Package catalog knows which custom resources each cluster serves, and why. It hides how clusters
// share them: equal definitions share one [Content], and equal sets of contents share one [Shape].
package catalog

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
)

// A Hash identifies a content, part or shape: SHA-256 over the fields that change how
// resources are served.
type Hash [sha256.Size]byte

// A Content is a custom resource definition without its cluster. Equal definitions in
// any number of clusters share one Content. It is immutable.
type Content struct {
	// Hash covers all fields that affect a request.
	Hash Hash
	// WatchHash covers all fields that affect a watch: those of Hash, except whether the
	// definition is terminating.
	WatchHash Hash
	// Definition has the name that it has in its clusters, is Established, and has a
	// UID made of the hash. It has no schemas, because decoded schemas are many times
	// as large as their JSON; see [Content.Whole].
	Definition *apiextensionsv1.CustomResourceDefinition
	text       []byte // JSON of a contentText
	rules      *Rules // that convert its objects, nil for none
	parts      *Parts // that read its objects, nil for most
	storage    Storage
	offers     *Offers  // whose registries serve it, nil for a custom resource
	stored     *Content // the content with [Stored], nil if it is this one
}

// contentText holds the fields of a content that its hash covers.
type contentText struct {
	Name  string
	Spec  apiextensionsv1.CustomResourceDefinitionSpec
	Names apiextensionsv1.CustomResourceDefinitionNames
	// NameValidation is that of an APIResourceSchema, empty for the default.
	NameValidation string `json:",omitempty"`
}

// rehash changes both hashes of a content that something besides its definition distinguishes.
func (c *Content) rehash(by []byte) {
	c.Hash = sha256.Sum256(slices.Concat(c.Hash[:], by))
	c.WatchHash = sha256.Sum256(slices.Concat(c.WatchHash[:], by))
}

// Whole returns the definition with its schemas.
func (c *Content) Whole() (*apiextensionsv1.CustomResourceDefinition, error) {
	var t contentText
	if err := json.Unmarshal(c.text, &t); err != nil {
		return nil, err
	}
	whole := *c.Definition
	whole.Spec = t.Spec
	if t.NameValidation != "" {
		whole.Annotations = map[string]string{apisv1alpha1.NameValidationAnnotation: t.NameValidation}
	}
	return &whole, nil
}

// NewContent returns the content of a definition whose names are accepted.
func NewContent(crd *apiextensionsv1.CustomResourceDefinition) (*Content, error) {
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	names := crd.Status.AcceptedNames
	if names.Plural == "" {
		names = crd.Spec.Names
	}
	text, err := json.Marshal(contentText{crd.Name, crd.Spec, names, crd.Annotations[apisv1alpha1.NameValidationAnnotation]})
	if err != nil {
		return nil, err
	}
	c := &Content{WatchHash: sha256.Sum256(text), text: text}
	c.Hash = c.WatchHash
	// Established long ago: upstream's handler delays requests for a few seconds after
	// a definition was established, until other servers have seen it.
	conditions := since(time.Unix(0, 0), apiextensionsv1.NamesAccepted, apiextensionsv1.Established)
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		c.Hash = sha256.Sum256(slices.Concat(text, []byte(apiextensionsv1.Terminating)))
		conditions = since(time.Unix(0, 0), apiextensionsv1.NamesAccepted, apiextensionsv1.Established, apiextensionsv1.Terminating)
	}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
	c.Definition = &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: crd.Name, UID: types.UID(fmt.Sprintf("%x", c.Hash))},
		Spec:       crd.Spec,
		Status:     apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names, Conditions: conditions},
	}
	return c, nil
}

// Terminating returns the content as it is while its instances are being deleted.
func (c *Content) Terminating() (*Content, error) {
	whole, err := c.Whole()
	if err != nil {
		return nil, err
	}
	whole.Status.Conditions = since(time.Unix(0, 0), apiextensionsv1.NamesAccepted, apiextensionsv1.Established, apiextensionsv1.Terminating)
	ending, err := NewContent(whole)
	if err == nil && c.offers != nil {
		ending = ending.offeredBy(c.offers)
	}
	return ending, err
}

// since returns conditions that are true since t.
func since(t time.Time, all ...apiextensionsv1.CustomResourceDefinitionConditionType) []apiextensionsv1.CustomResourceDefinitionCondition {
	out := make([]apiextensionsv1.CustomResourceDefinitionCondition, len(all))
	for i, c := range all {
		out[i] = apiextensionsv1.CustomResourceDefinitionCondition{Type: c, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: metav1.NewTime(t)}
	}
	return out
}

// GroupResource returns the resource that the content defines.
func (c *Content) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: c.Definition.Spec.Group, Resource: c.Definition.Status.AcceptedNames.Plural}
}

// Versions returns the served versions of the content.
func (c *Content) Versions() []string {
	var all []string
	for _, v := range c.Definition.Spec.Versions {
		if v.Served {
			all = append(all, v.Name)
		}
	}
	return all
}

// StorageVersion returns the version in which objects are stored.
func (c *Content) StorageVersion() string {
	for _, v := range c.Definition.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}
