package catalog

import (
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// called returns a definition in example.com with these names: plural, singular, kind and list kind.
func called(names string) *apiextensionsv1.CustomResourceDefinition {
	n := strings.Fields(names)
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: n[0] + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: n[0], Singular: n[1], Kind: n[2], ListKind: n[3]},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

// Equal definitions of different clusters share a content. Differences that affect requests make
// another content.
func TestContent(t *testing.T) {
	hash := func(change func(*apiextensionsv1.CustomResourceDefinition)) Hash {
		crd := called("gadgets gadget Gadget GadgetList")
		change(crd)
		c, err := NewContent(crd)
		if err != nil {
			t.Fatal(err)
		}
		return c.Hash
	}
	same := hash(func(*apiextensionsv1.CustomResourceDefinition) {})
	if same != hash(func(c *apiextensionsv1.CustomResourceDefinition) {
		c.UID, c.Labels = "other", map[string]string{"a": "b"}
	}) {
		t.Error("whose definition it is makes a difference")
	}
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"schema": func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Spec.Versions[0].Schema.OpenAPIV3Schema.MaxProperties = new(int64(1))
		},
		"short name": func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Names.ShortNames = []string{"g"} },
		"scope":      func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Scope = apiextensionsv1.NamespaceScoped },
		"terminating": func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Status.Conditions = since(time.Now(), apiextensionsv1.Terminating)
		},
		"accepted": func(c *apiextensionsv1.CustomResourceDefinition) { c.Status.AcceptedNames.Plural = "gizmos" },
	} {
		if hash(change) == same {
			t.Errorf("another %s makes no difference", name)
		}
	}
	one, err := NewContent(called("gadgets gadget Gadget GadgetList"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := NewContent(called("gadgets gadget Gadget GadgetList"))
	if err != nil {
		t.Fatal(err)
	}
	if NewShape(Served{Content: one}).Key != NewShape(Served{Content: two}).Key {
		t.Error("clusters that serve the same have different shapes")
	}
}
