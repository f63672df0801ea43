package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WorkspaceAuthenticationConfiguration lists identity providers for workspaces of the WorkspaceTypes that refer to it.
// A user of such a provider is authenticated for the requested workspace only.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=kcp
type WorkspaceAuthenticationConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec lists the identity providers.
	// +required
	Spec WorkspaceAuthenticationConfigurationSpec `json:"spec"`
}

// WorkspaceAuthenticationConfigurationSpec lists identity providers.
type WorkspaceAuthenticationConfigurationSpec struct {
	// jwt are the identity providers that sign JSON web tokens.
	// The format is that of AuthenticationConfiguration in apiserver.config.k8s.io.
	// +required
	JWT []JWTAuthenticator `json:"jwt"`
}

// JWTAuthenticator authenticates the JSON web tokens of one identity provider.
type JWTAuthenticator struct {
	// issuer is the issuer of the tokens and their expected audiences.
	// +required
	Issuer Issuer `json:"issuer"`

	// claimValidationRules are conditions on the claims of a token.
	// All of them must hold.
	// +optional
	ClaimValidationRules []ClaimValidationRule `json:"claimValidationRules,omitempty"`

	// claimMappings maps the claims of a token to attributes of the user.
	// +required
	ClaimMappings ClaimMappings `json:"claimMappings"`

	// userValidationRules are conditions on the resulting user.
	// All of them must hold.
	// +optional
	UserValidationRules []UserValidationRule `json:"userValidationRules,omitempty"`
}

// Issuer describes the issuer of tokens and their expected audiences.
type Issuer struct {
	// url is the issuer URL, as in the claim "iss" of the tokens.
	// Unless discoveryURL is set, the provider's discovery document is below it.
	// +required
	URL string `json:"url"`

	// discoveryURL is the URL of the discovery document.
	// Defaults to url followed by "/.well-known/openid-configuration".
	// +optional
	DiscoveryURL *string `json:"discoveryURL,omitempty"`

	// certificateAuthority holds PEM-encoded CA certificates that verify the issuer's server certificate.
	// If empty, the CA certificates of the server's machine are used.
	// +optional
	CertificateAuthority string `json:"certificateAuthority,omitempty"`

	// audiences are the accepted audiences.
	// A token must have at least one of them.
	// +optional
	Audiences []string `json:"audiences,omitempty"`

	// audienceMatchPolicy says how audiences are matched.
	// MatchAny is the only policy, and required if there are several audiences.
	// +optional
	AudienceMatchPolicy string `json:"audienceMatchPolicy,omitempty"`
}

// ClaimValidationRule is a condition on claims: either a claim has a required value, or an expression is true.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) || has(self.expression)",message="either claim or expression must be specified"
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || !has(self.expression)",message="claim and expression cannot both be specified"
// +kubebuilder:validation:XValidation:rule="has(self.claim) == has(self.requiredValue)",message="claim and requiredValue go together"
// +kubebuilder:validation:XValidation:rule="has(self.expression) == has(self.message)",message="expression and message go together"
type ClaimValidationRule struct {
	// claim is the name of the claim.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Claim string `json:"claim,omitempty"`

	// requiredValue is the value that the claim must have.
	// +kubebuilder:validation:MinLength=1
	// +optional
	RequiredValue string `json:"requiredValue,omitempty"`

	// expression is a CEL expression over "claims" that must be true.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Expression string `json:"expression,omitempty"`

	// message is the error message if the expression is false.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Message string `json:"message,omitempty"`
}

// ClaimMappings maps the claims of a token to attributes of the user.
type ClaimMappings struct {
	// username is the name of the user.
	// A token whose username begins with "system:" is refused.
	// +required
	Username PrefixedClaimOrExpression `json:"username"`

	// groups are the groups of the user.
	// Groups that begin with "system:" are dropped.
	// +optional
	Groups *PrefixedClaimOrExpression `json:"groups,omitempty"`

	// uid is the unique ID of the user.
	// +optional
	UID *ClaimOrExpression `json:"uid,omitempty"`

	// extra are additional attributes of the user.
	// Keys that contain "kcp.io" are dropped.
	// +optional
	Extra []ExtraMapping `json:"extra,omitempty"`
}

// PrefixedClaimOrExpression takes a value from a claim, or from an expression over claims.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) || has(self.expression)",message="either claim or expression must be specified"
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || !has(self.expression)",message="claim and expression cannot both be specified"
// +kubebuilder:validation:XValidation:rule="!has(self.prefix) || has(self.claim)",message="prefix can only be specified when claim is specified"
type PrefixedClaimOrExpression struct {
	// claim is the name of the claim.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Claim string `json:"claim,omitempty"`

	// prefix is prepended to the value of the claim.
	// +optional
	Prefix *string `json:"prefix,omitempty"`

	// expression is a CEL expression over "claims" that yields the value.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Expression string `json:"expression,omitempty"`
}

// ClaimOrExpression takes a value from a claim, or from an expression over claims.
//
// +kubebuilder:validation:XValidation:rule="!has(self.claim) || !has(self.expression)",message="claim and expression cannot both be specified"
type ClaimOrExpression struct {
	// claim is the name of the claim.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Claim string `json:"claim,omitempty"`

	// expression is a CEL expression over "claims" that yields the value.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Expression string `json:"expression,omitempty"`
}

// ExtraMapping sets one additional attribute of the user.
type ExtraMapping struct {
	// key is the key of the attribute: a domain, a slash and a path.
	// +required
	Key string `json:"key"`

	// valueExpression is a CEL expression over "claims" that yields the value.
	// +required
	ValueExpression string `json:"valueExpression"`
}

// UserValidationRule is a condition on users.
type UserValidationRule struct {
	// expression is a CEL expression over "user" that must be true.
	// +required
	Expression string `json:"expression"`

	// message is the error message if the expression is false.
	// +required
	Message string `json:"message"`
}

// WorkspaceAuthenticationConfigurationList is a list of WorkspaceAuthenticationConfigurations.
//
// +kubebuilder:object:root=true
type WorkspaceAuthenticationConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// items are the WorkspaceAuthenticationConfigurations.
	Items []WorkspaceAuthenticationConfiguration `json:"items"`
}
