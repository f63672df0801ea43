package catalog

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
)

// A Convert function returns an object of a resource of the server in another version, the
// apiVersion to.
type Convert func(o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error)

// InProcess makes a definition convert its objects with a [Convert] function or with [Rules]. Upstream
// can only convert with a webhook, so this is one that the server calls in its own process; the URL is
// never connected to.
func InProcess(crd *apiextensionsv1.CustomResourceDefinition) {
	url := "https://conversion.invalid/"
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
		},
	}
}

// CallsWebhook reports whether objects of a definition are converted by a webhook.
func CallsWebhook(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
}

// Rules are the rules of an APIConversion. They are immutable.
type Rules struct {
	text []byte // JSON of an APIConversionSpec
	hash Hash

	mu sync.Mutex
	of map[Hash]*Content // contents with these rules, by the hash without; guarded by mu
}

// NewRules returns the rules of an APIConversion.
func NewRules(spec *apisv1alpha1.APIConversionSpec) (*Rules, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return &Rules{text: text, hash: sha256.Sum256(text), of: map[Hash]*Content{}}, nil
}

// Convertible reports whether rules have a meaning for a content: it has several versions, and
// neither a webhook nor a registry converts between them.
func (c *Content) Convertible() bool {
	return !c.Native() && len(c.Definition.Spec.Versions) > 1 && !CallsWebhook(c.Definition)
}

// Spec returns the rules in the form of the API.
func (r *Rules) Spec() (*apisv1alpha1.APIConversionSpec, error) {
	spec := &apisv1alpha1.APIConversionSpec{}
	return spec, json.Unmarshal(r.text, spec)
}

// Hash covers all rules.
func (r *Rules) Hash() Hash { return r.hash }

// Rules returns the rules that convert the objects of the content, nil for none.
func (c *Content) Rules() *Rules { return c.rules }

// Of returns a content whose objects are converted by the rules. It returns the content itself
// if rules have no meaning for it.
func (r *Rules) Of(c *Content) *Content {
	if !c.Convertible() {
		return c
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ruled := r.of[c.Hash]; ruled != nil {
		return ruled
	}
	ruled := *c
	ruled.rules = r
	ruled.rehash(r.hash[:])
	d := *c.Definition
	d.UID = types.UID(fmt.Sprintf("%x", ruled.Hash))
	ruled.Definition = &d
	if len(r.of) >= 4 { // a schema, and one that is being deleted; others had its name before
		clear(r.of)
	}
	r.of[c.Hash] = &ruled
	return &ruled
}
