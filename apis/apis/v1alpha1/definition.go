package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// coreGroup stands for the core group, whose name is empty, in the names of
// APIResourceSchemas and CustomResourceDefinitions.
const coreGroup = "core"

// SchemaName is the name of an APIResourceSchema.
type SchemaName struct {
	// Prefix distinguishes the schemas of one resource.
	Prefix string

	// GroupResource is the resource that the schema describes.
	schema.GroupResource
}

var prefixPattern = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// ParseSchemaName parses "<prefix>.<plural name>.<group>", with "core" for the core group.
func ParseSchemaName(name string) (SchemaName, error) {
	n := splitSchemaName(name)
	switch {
	case n.String() != name: // a part is missing
		return SchemaName{}, fmt.Errorf("the name %q of an APIResourceSchema must be <prefix>.<plural name>.<group>, with \"core\" for the core group", name)
	case !prefixPattern.MatchString(n.Prefix):
		return SchemaName{}, fmt.Errorf("the prefix %q in the name of an APIResourceSchema must have lower-case letters, digits and dashes, begin with a letter, and end with a letter or digit", n.Prefix)
	case len(validation.IsDNS1035Label(n.Resource)) > 0:
		return SchemaName{}, fmt.Errorf("the plural name %q in the name of an APIResourceSchema must be a DNS label", n.Resource)
	case len(validation.IsDNS1123Subdomain(groupName(n.Group))) > 0:
		return SchemaName{}, fmt.Errorf("the group %q in the name of an APIResourceSchema must be a DNS name", n.Group)
	}
	return n, nil
}

// splitSchemaName splits a name that may be malformed.
func splitSchemaName(name string) SchemaName {
	prefix, rest, _ := strings.Cut(name, ".")
	plural, group, _ := strings.Cut(rest, ".")
	if group == coreGroup {
		group = ""
	}
	return SchemaName{prefix, schema.GroupResource{Group: group, Resource: plural}}
}

func groupName(group string) string {
	if group == "" {
		return coreGroup
	}
	return group
}

// String returns the name as text.
func (n SchemaName) String() string {
	return n.Prefix + "." + n.DefinitionName()
}

// DefinitionName returns the name of a CustomResourceDefinition of the same resource.
func (n SchemaName) DefinitionName() string {
	return n.Resource + "." + groupName(n.Group)
}

// JSONSchema returns the decoded schema of the version.
func (v *APIResourceVersion) JSONSchema() (*apiextensionsv1.JSONSchemaProps, error) {
	if len(v.Schema.Raw) == 0 {
		return nil, fmt.Errorf("version %q has no schema", v.Name)
	}
	s := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(v.Schema.Raw, s); err != nil {
		return nil, fmt.Errorf("schema of version %q: %w", v.Name, err)
	}
	return s, nil
}

// SetJSONSchema sets the schema of the version.
func (v *APIResourceVersion) SetJSONSchema(s *apiextensionsv1.JSONSchemaProps) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("schema of version %q: %w", v.Name, err)
	}
	v.Schema = runtime.RawExtension{Raw: raw}
	return nil
}

// CustomResourceDefinition returns a definition of the resource that s describes. It lacks
// what definitions cannot express, which is nameValidation.
func (s *APIResourceSchema) CustomResourceDefinition() (*apiextensionsv1.CustomResourceDefinition, error) {
	in := s.DeepCopy().Spec
	name := SchemaName{GroupResource: schema.GroupResource{Group: in.Group, Resource: in.Names.Plural}}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name.DefinitionName(), Annotations: s.definitionAnnotations()},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: in.Group, Names: in.Names, Scope: in.Scope},
	}
	for _, v := range in.Versions {
		props, err := v.JSONSchema()
		if err != nil {
			return nil, fmt.Errorf("APIResourceSchema %q: %w", s.Name, err)
		}
		version := apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v.Name, Served: v.Served, Storage: v.Storage, Deprecated: v.Deprecated, DeprecationWarning: v.DeprecationWarning,
			Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props},
			AdditionalPrinterColumns: v.AdditionalPrinterColumns, SelectableFields: v.SelectableFields,
		}
		if v.Subresources != (apiextensionsv1.CustomResourceSubresources{}) {
			version.Subresources = &v.Subresources
		}
		crd.Spec.Versions = append(crd.Spec.Versions, version)
	}
	if c := in.Conversion; c != nil {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: c.Strategy}
		if c.Webhook != nil {
			webhook := &apiextensionsv1.WebhookConversion{ConversionReviewVersions: c.Webhook.ConversionReviewVersions}
			if config := c.Webhook.ClientConfig; config != nil {
				webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{URL: &config.URL, CABundle: config.CABundle}
			}
			crd.Spec.Conversion.Webhook = webhook
		}
	}
	return crd, nil
}

// FromCustomResourceDefinition returns an APIResourceSchema with the given prefix that
// describes the resource of crd.
func FromCustomResourceDefinition(crd *apiextensionsv1.CustomResourceDefinition, prefix string) (*APIResourceSchema, error) {
	s, err := fromDefinition(crd.DeepCopy(), prefix)
	if err != nil {
		return nil, fmt.Errorf("APIResourceSchema for the CustomResourceDefinition %q: %w", crd.Name, err)
	}
	return s, nil
}

func fromDefinition(crd *apiextensionsv1.CustomResourceDefinition, prefix string) (*APIResourceSchema, error) {
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	name, err := ParseSchemaName(SchemaName{prefix, schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}}.String())
	if err != nil {
		return nil, err
	}
	s := &APIResourceSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "APIResourceSchema"},
		ObjectMeta: metav1.ObjectMeta{Name: name.String(), Annotations: approved(crd)},
		Spec:       APIResourceSchemaSpec{Group: crd.Spec.Group, Names: crd.Spec.Names, Scope: crd.Spec.Scope},
	}
	for _, v := range crd.Spec.Versions {
		version := APIResourceVersion{
			Name: v.Name, Served: v.Served, Storage: v.Storage, Deprecated: v.Deprecated, DeprecationWarning: v.DeprecationWarning,
			AdditionalPrinterColumns: v.AdditionalPrinterColumns, SelectableFields: v.SelectableFields,
		}
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return nil, fmt.Errorf("version %q has no schema", v.Name)
		}
		if err := version.SetJSONSchema(v.Schema.OpenAPIV3Schema); err != nil {
			return nil, err
		}
		if v.Subresources != nil {
			version.Subresources = *v.Subresources
		}
		s.Spec.Versions = append(s.Spec.Versions, version)
	}
	s.Spec.Conversion, err = fromConversion(crd.Spec.Conversion, len(crd.Spec.Versions))
	return s, err
}

func fromConversion(c *apiextensionsv1.CustomResourceConversion, versions int) (*ResourceConversion, error) {
	if c.Strategy != apiextensionsv1.WebhookConverter {
		if versions == 1 {
			return nil, nil // nothing is ever converted
		}
		return &ResourceConversion{Strategy: c.Strategy}, nil
	}
	if c.Webhook == nil || c.Webhook.ClientConfig == nil || c.Webhook.ClientConfig.URL == nil {
		return nil, errors.New("the conversion webhook must have a URL, not a Service")
	}
	return &ResourceConversion{Strategy: c.Strategy, Webhook: &WebhookConversion{
		ClientConfig:             &WebhookClientConfig{URL: *c.Webhook.ClientConfig.URL, CABundle: c.Webhook.ClientConfig.CABundle},
		ConversionReviewVersions: c.Webhook.ConversionReviewVersions,
	}}, nil
}

// definitionAnnotations returns the annotations of the definition of the schema.
func (s *APIResourceSchema) definitionAnnotations() map[string]string {
	all := approved(s)
	if s.Spec.NameValidation == "" || s.Spec.NameValidation == NameIsSubdomain {
		return all
	}
	if all == nil {
		all = map[string]string{}
	}
	all[NameValidationAnnotation] = string(s.Spec.NameValidation)
	return all
}

// approved returns the annotation that groups of the Kubernetes project need, if o has it.
func approved(o metav1.Object) map[string]string {
	text, ok := o.GetAnnotations()[apiextensionsv1.KubeAPIApprovedAnnotation]
	if !ok {
		return nil
	}
	return map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: text}
}
