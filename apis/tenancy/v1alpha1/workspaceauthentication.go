package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WorkspaceAuthenticationConfiguration names identity providers whose users may come to workspaces: those of the types that refer to it.
// Such a user is known in the workspace that he comes to, and in no other.
//
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,categories=kcp
type WorkspaceAuthenticationConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Which identity providers there are.
	// +required
	Spec WorkspaceAuthenticationConfigurationSpec `json:"spec"`
}

// WorkspaceAuthenticationConfigurationSpec says which identity providers there are.
type WorkspaceAuthenticationConfigurationSpec struct {
	// Identity providers that sign JSON web tokens, in the form that an API server of Kubernetes reads them.
	// +required
	JWT []JWTAuthenticator `json:"jwt"`
}

// JWTAuthenticator makes users of the JSON web tokens of one identity provider.
type JWTAuthenticator struct {
	// Who signs the tokens, and for whom they must be.
	// +required
	Issuer Issuer `json:"issuer"`

	// What else the claims of a token must fulfil.
	// +optional
	ClaimValidationRules []ClaimValidationRule `json:"claimValidationRules,omitempty"`

	// What of a token says who the user is.
	// +required
	ClaimMappings ClaimMappings `json:"claimMappings"`

	// What the user that a token is made into must fulfil.
	// +optional
	UserValidationRules []UserValidationRule `json:"userValidationRules,omitempty"`
}

// Issuer says who signs tokens, and for whom they must be.
type Issuer struct {
	// URL that tokens name as their issuer, which tells its keys below it.
	// +required
	URL string `json:"url"`

	// Where the issuer tells its keys, if not below its URL.
	// +optional
	DiscoveryURL *string `json:"discoveryURL,omitempty"`

	// Certificates, in PEM, that verify the issuer. Those of the machine if not given.
	// +optional
	CertificateAuthority string `json:"certificateAuthority,omitempty"`

	// Audiences of which a token must have one.
	// +optional
	Audiences []string `json:"audiences,omitempty"`

	// Which of several audiences a token must have: MatchAny.
	// +optional
	AudienceMatchPolicy string `json:"audienceMatchPolicy,omitempty"`
}

// ClaimValidationRule is what claims must fulfil: one must have a value, or an expression must be true.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.expression)",message="exactly one of claim and expression must be set"
// +kubebuilder:validation:XValidation:rule="has(self.claim) == has(self.requiredValue)",message="claim and requiredValue go together"
// +kubebuilder:validation:XValidation:rule="has(self.expression) == has(self.message)",message="expression and message go together"
type ClaimValidationRule struct {
	// The claim.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Claim string `json:"claim,omitempty"`

	// The value that the claim must have.
	// +kubebuilder:validation:MinLength=1
	// +optional
	RequiredValue string `json:"requiredValue,omitempty"`

	// A CEL expression over claims.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Expression string `json:"expression,omitempty"`

	// What is wrong if the expression is false.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Message string `json:"message,omitempty"`
}

// ClaimMappings say what of a token says who the user is.
type ClaimMappings struct {
	// The name of the user. Names that begin with "system:" are refused.
	// +required
	Username PrefixedClaimOrExpression `json:"username"`

	// The groups of the user. Those that begin with "system:" are dropped.
	// +optional
	Groups *PrefixedClaimOrExpression `json:"groups,omitempty"`

	// What identifies the user for good.
	// +optional
	UID *ClaimOrExpression `json:"uid,omitempty"`

	// What else is known of the user. Keys with "kcp.io" in them are dropped.
	// +optional
	Extra []ExtraMapping `json:"extra,omitempty"`
}

// PrefixedClaimOrExpression takes a value from a claim, or from an expression over claims.
//
// +kubebuilder:validation:XValidation:rule="has(self.claim) != has(self.expression)",message="exactly one of claim and expression must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.prefix) || has(self.claim)",message="prefix can only be set together with claim"
type PrefixedClaimOrExpression struct {
	// The claim.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Claim string `json:"claim,omitempty"`

	// What is put before the value of the claim.
	// +optional
	Prefix *string `json:"prefix,omitempty"`

	// A CEL expression over claims.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Expression string `json:"expression,omitempty"`
}

// ClaimOrExpression takes a value from a claim, or from an expression over claims.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.claim) && has(self.expression))",message="at most one of claim and expression can be set"
type ClaimOrExpression struct {
	// The claim.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Claim string `json:"claim,omitempty"`

	// A CEL expression over claims.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Expression string `json:"expression,omitempty"`
}

// ExtraMapping takes something else that is known of a user from an expression.
type ExtraMapping struct {
	// The key, a path below a domain.
	// +required
	Key string `json:"key"`

	// A CEL expression over claims.
	// +required
	ValueExpression string `json:"valueExpression"`
}

// UserValidationRule is what users must fulfil.
type UserValidationRule struct {
	// A CEL expression over the user.
	// +required
	Expression string `json:"expression"`

	// What is wrong if the expression is false.
	// +required
	Message string `json:"message"`
}

// WorkspaceAuthenticationConfigurationList is a list of WorkspaceAuthenticationConfigurations.
//
// +kubebuilder:object:root=true
type WorkspaceAuthenticationConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	// The WorkspaceAuthenticationConfigurations of the list.
	Items []WorkspaceAuthenticationConfiguration `json:"items"`
}
