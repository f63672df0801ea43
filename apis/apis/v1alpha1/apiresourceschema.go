package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// APIResourceSchema describes a resource that APIExports can provide, as a CustomResourceDefinition does.
// By itself it has no effect.
// Its name is "<prefix>.<plural name>.<group>", with "core" for the core group, and its spec is immutable.
// To change an exported resource, create another APIResourceSchema and enter its name in the APIExport.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIResourceSchema struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the description of the resource.
	// +optional
	Spec APIResourceSchemaSpec `json:"spec,omitempty"`
}

// APIResourceSchemaSpec describes a resource.
//
// +kubebuilder:validation:XValidation:rule="!has(self.versions) || size(self.versions) <= 1 || has(self.conversion)",message="conversion must be set if there is more than one version"
type APIResourceSchemaSpec struct {
	// group is the API group of the resource.
	// Empty for the core group.
	// +required
	Group string `json:"group"`

	// names are the names of the resource and its kind.
	// +required
	Names apiextensionsv1.CustomResourceDefinitionNames `json:"names"`

	// scope says whether the objects are in namespaces: Cluster or Namespaced.
	// +kubebuilder:validation:Enum=Cluster;Namespaced
	// +required
	Scope apiextensionsv1.ResourceScope `json:"scope"`

	// versions are the versions of the resource.
	// Exactly one is the storage version.
	// +kubebuilder:validation:MinItems=1
	// +listType=map
	// +listMapKey=name
	// +required
	Versions []APIResourceVersion `json:"versions"`

	// nameValidation says which names objects may have.
	// With DNS1123Subdomain, they have lower-case letters, digits, dashes and dots. With PathSegmentName, they have any printable characters that a segment of a URL can have, and the schema must serve only the version in which objects are stored.
	// Defaults to DNS1123Subdomain.
	// +kubebuilder:default=DNS1123Subdomain
	// +optional
	NameValidation NameValidation `json:"nameValidation,omitempty"`

	// conversion says how objects are converted between versions.
	// It is required if there is more than one version.
	// +optional
	Conversion *ResourceConversion `json:"conversion,omitempty"`
}

// NameValidation says which names objects may have.
//
// +kubebuilder:validation:Enum=DNS1123Subdomain;PathSegmentName
type NameValidation string

const (
	// NameIsSubdomain requires names with lower-case letters, digits, dashes and dots.
	NameIsSubdomain NameValidation = "DNS1123Subdomain"

	// NameIsPathSegment allows names with all characters that a segment of a URL can have.
	NameIsPathSegment NameValidation = "PathSegmentName"

	// NameValidationAnnotation has the NameValidation of the schema that a definition was made of.
	// A definition of a workspace cannot have it: only the server makes definitions of schemas.
	NameValidationAnnotation = "internal.apis.kcp.io/name-validation"
)

// APIResourceVersion is a version of a resource.
type APIResourceVersion struct {
	// name is the name of the version, such as "v1".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^v[1-9][0-9]*([a-z]+[1-9][0-9]*)?$`
	// +required
	Name string `json:"name"`

	// served says whether the version is served.
	// Defaults to true.
	// +kubebuilder:default=true
	// +required
	Served bool `json:"served"`

	// storage says whether objects are stored in this version.
	// +required
	Storage bool `json:"storage"`

	// deprecated says whether clients that use the version get a warning.
	// Defaults to false.
	// +optional
	Deprecated bool `json:"deprecated,omitempty"`

	// deprecationWarning is the text of the warning.
	// Defaults to a sentence that names the version and recommends the newest one.
	// +optional
	DeprecationWarning *string `json:"deprecationWarning,omitempty"`

	// schema is the OpenAPI v3 schema of the objects in this version, as in spec.versions[].schema.openAPIV3Schema of a CustomResourceDefinition.
	// +structType=atomic
	// +required
	Schema runtime.RawExtension `json:"schema"`

	// subresources are the subresources of the objects in this version.
	// If empty, there are none.
	// +optional
	Subresources apiextensionsv1.CustomResourceSubresources `json:"subresources,omitzero"`

	// additionalPrinterColumns are the columns in which clients such as kubectl show the objects, besides the name.
	// Defaults to the age.
	// +listType=map
	// +listMapKey=name
	// +optional
	AdditionalPrinterColumns []apiextensionsv1.CustomResourceColumnDefinition `json:"additionalPrinterColumns,omitempty"`

	// selectableFields are the fields that field selectors can use, besides the name and the namespace.
	// +listType=atomic
	// +optional
	SelectableFields []apiextensionsv1.SelectableField `json:"selectableFields,omitempty"`
}

// ResourceConversion says how objects are converted between versions.
//
// +kubebuilder:validation:XValidation:rule="(self.strategy == 'Webhook') == has(self.webhook)",message="webhook must be set if the strategy is Webhook, and only then"
type ResourceConversion struct {
	// strategy says who converts objects.
	// With None, the server changes only their apiVersion, unless there is an APIConversion. With Webhook, it calls a webhook.
	// +kubebuilder:validation:Enum=None;Webhook
	// +required
	Strategy apiextensionsv1.ConversionStrategyType `json:"strategy"`

	// webhook is the webhook to call.
	// It is set only with the strategy Webhook.
	// +optional
	Webhook *WebhookConversion `json:"webhook,omitempty"`
}

// WebhookConversion is a webhook that converts objects.
type WebhookConversion struct {
	// clientConfig says how to call the webhook.
	// +optional
	ClientConfig *WebhookClientConfig `json:"clientConfig,omitempty"`

	// conversionReviewVersions are the versions of ConversionReview that the webhook understands.
	// The server uses the first one that it knows.
	// +listType=atomic
	// +required
	ConversionReviewVersions []string `json:"conversionReviewVersions"`
}

// WebhookClientConfig says how to call a webhook.
type WebhookClientConfig struct {
	// url is the address of the webhook, beginning with "https://".
	// +kubebuilder:validation:Format=uri
	// +optional
	URL string `json:"url,omitempty"`

	// caBundle are the PEM-encoded CA certificates that verify the webhook's certificate.
	// If empty, the certificates of the system are used.
	// +optional
	CABundle []byte `json:"caBundle,omitempty"`
}

// APIResourceSchemaList is a list of APIResourceSchemas.
//
// +kubebuilder:object:root=true
type APIResourceSchemaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the APIResourceSchemas.
	Items []APIResourceSchema `json:"items"`
}
