package v1alpha2

import (
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strings"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// IdentityKey is the key of the entry of a Secret whose hash is the identity of an
// APIExport.
const IdentityKey = "key"

// Annotations and labels of APIExports, APIBindings and the objects that they concern.
const (
	// ExtraAnnotationPrefix begins the keys of annotations that are copied from an
	// APIExport to its APIBindings, and removed there with it.
	ExtraAnnotationPrefix = "extra.apis.kcp.io/"

	// SkipEndpointSliceAnnotation prevents, on an APIExport, the creation of an
	// APIExportEndpointSlice of the same name. Its value does not matter.
	SkipEndpointSliceAnnotation = "apiexports.apis.kcp.io/skip-endpointslice"

	// ResourceBindingsAnnotation holds, on a LogicalCluster, which APIBinding or
	// CustomResourceDefinition owns each resource, as a JSON object.
	ResourceBindingsAnnotation = "internal.apis.kcp.io/resource-bindings"

	// BoundCRDAnnotation marks definitions of bound resources in the existing kcp. Users
	// may not set it on their CustomResourceDefinitions.
	BoundCRDAnnotation = "apis.kcp.io/bound-crd"

	// SchemaTenantAnnotation holds, on the definition of a bound schema, the logical cluster
	// whose tenant it counts for.
	SchemaTenantAnnotation = "internal.apis.kcp.io/schema-tenant"

	// ExportLabel holds, on an APIBinding, the [ExportLabelValue] of its APIExport.
	ExportLabel = "internal.apis.kcp.io/export"

	// ClaimedLabelPrefix begins the key of the label that an object has in the virtual
	// workspace of an APIExport that claims it. The [ExportLabelValue] of the APIExport
	// follows. The label is computed and not stored.
	ClaimedLabelPrefix = "claimed.internal.apis.kcp.io/"
)

// BindingFinalizer keeps an APIBinding until the objects of its resources are deleted.
const BindingFinalizer = "apis.kcp.io/apibinding-finalizer"

// Annotations of APIExports and APIBindings in version v1alpha1 for what that version
// cannot express. Each holds a JSON array in the form of v1alpha2, in the order of the list
// in v1alpha2. A null in it stands for an entry that v1alpha1 has in its own list.
const (
	// ResourceSchemasAnnotation holds resources of an APIExport.
	ResourceSchemasAnnotation = "apis.v1alpha2.kcp.io/resource-schemas"

	// PermissionClaimsAnnotation holds claims of an APIExport.
	PermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/permission-claims"

	// AcceptablePermissionClaimsAnnotation holds claims in the spec of an APIBinding.
	AcceptablePermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/acceptable-permission-claims"

	// StatusExportPermissionClaimsAnnotation holds claims in status.exportPermissionClaims
	// of an APIBinding.
	StatusExportPermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/status-export-permission-claims"

	// StatusAppliedPermissionClaimsAnnotation holds claims in status.appliedPermissionClaims
	// of an APIBinding.
	StatusAppliedPermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/status-applied-permission-claims"
)

// Annotations of APIExports and APIBindings in version v1alpha2 for what only v1alpha1 can
// express. Each holds a JSON array of claims in the form of v1alpha1.
const (
	// V1alpha1PermissionClaimsAnnotation holds claims in the spec.
	V1alpha1PermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/v1alpha1-permission-claims"

	// V1alpha1StatusExportPermissionClaimsAnnotation holds claims in
	// status.exportPermissionClaims of an APIBinding.
	V1alpha1StatusExportPermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/v1alpha1-status-export-permission-claims"

	// V1alpha1StatusAppliedPermissionClaimsAnnotation holds claims in
	// status.appliedPermissionClaims of an APIBinding.
	V1alpha1StatusAppliedPermissionClaimsAnnotation = "apis.v1alpha2.kcp.io/v1alpha1-status-applied-permission-claims"
)

// Conditions of APIExports.
const (
	// IdentityValid is True when the secret of an APIExport has the key of its identity.
	IdentityValid conditions.Type = "IdentityValid"

	// VirtualWorkspaceURLsReady is True when the status of an APIExport has the addresses
	// of its virtual workspace.
	VirtualWorkspaceURLsReady conditions.Type = "VirtualWorkspaceURLsReady"
)

// Reasons of conditions of APIExports that are not True.
const (
	// IdentityGenerationFailed means for [IdentityValid] that the secret could not be
	// created.
	IdentityGenerationFailed = "IdentityGenerationFailed"

	// IdentityVerificationFailed means for [IdentityValid] that the secret is missing,
	// malformed, or has another key than before.
	IdentityVerificationFailed = "IdentityVerificationFailed"

	// ErrorGeneratingURLs means for [VirtualWorkspaceURLsReady] that the addresses could
	// not be determined.
	ErrorGeneratingURLs = "ErrorGeneratingURLs"
)

// Conditions of APIBindings.
const (
	// APIExportValid is True when the APIExport exists and can be bound. APIExportEndpointSlices
	// have it, too.
	APIExportValid conditions.Type = "APIExportValid"

	// InitialBindingCompleted is True once all resources are served. It does not become
	// False again.
	InitialBindingCompleted conditions.Type = "InitialBindingCompleted"

	// BindingUpToDate is True when the resources are served with the schemas that the
	// APIExport has now.
	BindingUpToDate conditions.Type = "BindingUpToDate"

	// BindingResourceDeleteSuccess is True when all objects of the resources of a binding
	// that is being deleted are gone.
	BindingResourceDeleteSuccess conditions.Type = "BindingResourceDeleteSuccess"

	// PermissionClaimsValid is True when the answers of a binding match the claims of the
	// APIExport.
	PermissionClaimsValid conditions.Type = "PermissionClaimsValid"

	// PermissionClaimsApplied is True when the accepted claims are in effect.
	PermissionClaimsApplied conditions.Type = "PermissionClaimsApplied"
)

// Reasons of conditions of APIBindings that are not True.
const (
	// APIExportInvalidReference means for [APIExportValid] that the reference is malformed.
	APIExportInvalidReference = "APIExportInvalidReference"

	// APIExportNotFound means for [APIExportValid] that there is no such APIExport.
	APIExportNotFound = "APIExportNotFound"

	// MissingIdentityHash means for [APIExportValid] that the APIExport has no identity yet.
	MissingIdentityHash = "MissingIdentityHash"

	// InternalError means for any condition that an unexpected error occurred.
	InternalError = "InternalError"

	// WaitingForEstablished means that some resources are not served yet.
	WaitingForEstablished = "WaitingForEstablished"

	// LogicalClusterNotFound means that the binding's logical cluster is not known yet.
	LogicalClusterNotFound = "LogicalClusterNotFound"

	// NamingConflicts means that a resource belongs to another APIBinding or to a
	// CustomResourceDefinition.
	NamingConflicts = "NamingConflicts"

	// APIResourceSchemaInvalid means that a schema of the APIExport is missing or invalid.
	APIResourceSchemaInvalid = "APIResourceSchemaInvalid"

	// ResourceDeletionFailed means for [BindingResourceDeleteSuccess] that some objects
	// could not be deleted.
	ResourceDeletionFailed = "ResourceDeletionFailed"

	// SomeResourcesRemain means for [BindingResourceDeleteSuccess] that objects are left.
	SomeResourcesRemain = "SomeResourcesRemain"

	// SomeFinalizersRemain means for [BindingResourceDeleteSuccess] that finalizers keep
	// the objects that are left.
	SomeFinalizersRemain = "SomeFinalizersRemain"

	// InvalidPermissionClaims means for [PermissionClaimsValid] that an answer belongs to no
	// claim of the APIExport. Its severity is Error.
	InvalidPermissionClaims = "InvalidPermissionClaims"

	// PermissionClaimsMismatch means for [PermissionClaimsValid] that an answer has other
	// verbs or another selector than the claim. Its severity is Warning.
	PermissionClaimsMismatch = "PermissionClaimsMismatch"
)

// DefaultBindingName returns the name of the default APIBinding in a logical cluster to an
// APIExport at a path. It is unique among the default bindings of the logical cluster.
func DefaultBindingName(cluster, path, export string) string {
	sum := sha256.Sum224([]byte(cluster + "|" + path + "|" + export))
	text := new(big.Int).SetBytes(sum[:]).Text(62)
	const maxExport = 253 - 1 - 5 // of 253 characters
	return export[:min(len(export), maxExport)] + "-" + strings.ToLower(text[:5])
}

// OwnBindingLabelValue is the value of the label with [ClaimedLabelPrefix] of an APIBinding in the
// virtual workspace of its APIExport, which needs no claim to read it. The existing kcp has chosen it.
const OwnBindingLabelValue = "LstvmbbzVDDOn90ZbhzSQO5U3DMCf88h1pZ"

// String returns the path and the name, or the name alone without a path, as clients of the existing
// kcp expect them in messages.
func (r ExportReference) String() string {
	if r.Path == "" {
		return r.Name
	}
	return r.Path + ":" + r.Name
}

// ExportLabelValue returns the value of [ExportLabel] for an APIExport in the logical
// cluster with the given name.
func ExportLabelValue(cluster, export string) string {
	return base62([]byte(cluster + ":" + export))
}

// ClaimLabelValue returns the value of the label with [ClaimedLabelPrefix] for a claim on a
// resource. It does not depend on the verbs and the default selector of the claim.
func ClaimLabelValue(group, resource, identityHash string) string {
	claim, _ := json.Marshal(struct { // strings always encode
		Group        string   `json:"group,omitempty"`
		Resource     string   `json:"resource"`
		Verbs        []string `json:"verbs"`
		IdentityHash string   `json:"identityHash,omitempty"`
	}{group, resource, nil, identityHash})
	return base62(claim)
}

// base62 returns the SHA-224 hash of data, in base 62.
func base62(data []byte) string {
	sum := sha256.Sum224(data)
	return new(big.Int).SetBytes(sum[:]).Text(62)
}
