package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// LogicalClusterName is the name of the one LogicalCluster in every logical cluster.
const LogicalClusterName = "cluster"

// Annotations of LogicalClusters, some of them also of Workspaces.
const (
	// ClusterAnnotation, kcp.io/cluster, holds the name of the logical cluster
	// that an object is in. Every object served has it.
	ClusterAnnotation = cluster.Annotation

	// PathAnnotation holds the canonical path of the logical cluster.
	PathAnnotation = "kcp.io/path"

	// ShardAnnotation holds the name of the shard that the logical cluster is
	// on. Workspaces have it too.
	ShardAnnotation = "core.kcp.io/shard"

	// RequiredGroupsAnnotation restricts a logical cluster to the members of
	// certain groups: alternatives separated by semicolons, each a list of
	// groups separated by commas, all of which a user must have. Workspaces
	// have it too, and those below them inherit it.
	RequiredGroupsAnnotation = "authorization.kcp.io/required-groups"

	// InactiveAnnotation takes a logical cluster offline while its value is "true".
	InactiveAnnotation = "core.kcp.io/inactive"

	// LegacyInactiveAnnotation is the older spelling of [InactiveAnnotation].
	LegacyInactiveAnnotation = "internal.kcp.io/inactive"

	// ForceDeleteAnnotation lets the deletion of a Workspace or LogicalCluster ignore
	// the terminators and finalizers that are left, and removes corrupt objects. On a
	// CustomResourceDefinition that is being deleted it removes corrupt objects of its
	// kind. Its value is the operator's reason. Only operators may set it.
	ForceDeleteAnnotation = "core.kcp.io/force-delete"

	// ForceDeletedByAnnotation holds who set [ForceDeleteAnnotation].
	ForceDeletedByAnnotation = "core.kcp.io/force-deleted-by"

	// MaxTotalObjectsAnnotation limits how many objects a logical cluster may
	// hold. Zero and below mean no limit.
	MaxTotalObjectsAnnotation = "core.kcp.io/max-total-objects"

	// MaxTotalBytesAnnotation limits how many bytes the objects of a logical cluster may
	// have in the database. Zero and below mean no limit.
	MaxTotalBytesAnnotation = "core.kcp.io/max-total-bytes"

	// MaxTreeObjectsAnnotation is MaxTotalObjectsAnnotation for the logical cluster and all
	// below it together.
	MaxTreeObjectsAnnotation = "core.kcp.io/max-tree-objects"

	// MaxTreeBytesAnnotation is MaxTotalBytesAnnotation for the logical cluster and all below
	// it together.
	MaxTreeBytesAnnotation = "core.kcp.io/max-tree-bytes"

	// ReplicateAnnotation lists, separated by commas, the API groups on whose behalf
	// the object is replicated to other shards.
	ReplicateAnnotation = "internal.kcp.io/replicate"
)

// Annotations and labels of Shards.
const (
	// UnschedulableAnnotation prevents, on a Shard, that new logical clusters are placed on it.
	// Its value does not matter.
	UnschedulableAnnotation = "experimental.core.kcp.io/unschedulable"

	// ShardNameLabel holds, on a Shard, its name, for label selectors.
	ShardNameLabel = "name"
)

const (
	// PhaseLabel holds status.phase of LogicalClusters and Workspaces, for label
	// selectors.
	PhaseLabel = "tenancy.kcp.io/phase"

	// InitializerLabelPrefix begins the key of the label that a LogicalCluster
	// has for each initializer that is still to finish. See [Initializer.Label].
	InitializerLabelPrefix = "initializer.internal.kcp.io/"

	// TerminatorLabelPrefix begins the key of the label that a LogicalCluster
	// has for each terminator that is still to finish. See [Terminator.Label].
	TerminatorLabelPrefix = "terminator.internal.kcp.io/"

	// DescendantsLabel, with the value "true", extends a ClusterRoleBinding to all
	// descendants of its logical cluster.
	DescendantsLabel = "rbac.kcp.io/descendants"

	// PolicyDescendantsLabel, with the value "true", extends a ValidatingAdmissionPolicyBinding or,
	// in the root workspace, a MutatingAdmissionPolicyBinding to all workspaces below its own, at
	// any depth.
	PolicyDescendantsLabel = "admission.kcp.io/descendants"
)

const (
	// LogicalClusterFinalizer keeps the owner of a logical cluster, such as its
	// Workspace, until the logical cluster is gone.
	LogicalClusterFinalizer = "core.kcp.io/logicalcluster"

	// DeletionFinalizer keeps a LogicalCluster until the content of its logical
	// cluster is gone.
	DeletionFinalizer = "core.kcp.io/logicalcluster-deletion"

	// TerminatorsFinalizer keeps a LogicalCluster until its terminators have finished.
	TerminatorsFinalizer = "kcp.io/has-terminators"
)

// Conditions of LogicalClusters. The first two are also on Workspaces.
const (
	// WorkspaceInitialized is True when all initializers have finished.
	WorkspaceInitialized conditions.Type = "WorkspaceInitialized"

	// WorkspaceContentDeleted is True when the content of a logical cluster that is
	// being deleted is gone.
	WorkspaceContentDeleted conditions.Type = "WorkspaceContentDeleted"

	// APIBindingsInitialized is True when the default bindings of the workspace's
	// type exist and are bound.
	APIBindingsInitialized conditions.Type = "APIBindingsInitialized"

	// APIBindingsReconciled is True when the bindings match the workspace's type, if
	// its life cycle is Maintain.
	APIBindingsReconciled conditions.Type = "APIBindingsReconciled"
)

// Reasons of conditions of LogicalClusters that are not True.
const (
	// InitializerExists means for [WorkspaceInitialized] that initializers are left.
	InitializerExists = "InitializerExists"

	// WorkspaceDisappeared means for [WorkspaceInitialized] that the logical cluster
	// is gone although its Workspace exists.
	WorkspaceDisappeared = "WorkspaceDisappeared"

	// WaitingOnAPIBindings means that some APIBindings are not bound yet.
	WaitingOnAPIBindings = "WaitingOnAPIBindings"

	// WorkspaceTypesInvalid means that the type of the workspace, or one that it
	// extends, cannot be resolved.
	WorkspaceTypesInvalid = "WorkspaceTypesInvalid"

	// APIBindingErrors means that some APIBindings could not be created.
	APIBindingErrors = "APIBindingErrors"
)

// Label returns the label that a LogicalCluster has while i is in its status.
// Controllers select the logical clusters that wait for them by it.
func (i Initializer) Label() (key, value string) {
	return hashLabel(InitializerLabelPrefix, string(i))
}

// Label returns the label that a LogicalCluster has while t is in its status.
// Controllers select the logical clusters that wait for them by it.
func (t Terminator) Label() (key, value string) {
	return hashLabel(TerminatorLabelPrefix, string(t))
}

// hashLabel returns a label for text that may contain characters which labels
// cannot have. The value is the whole hash of text. The key is the prefix and as
// much of the hash as fits into 63 characters.
func hashLabel(prefix, text string) (key, value string) {
	sum := sha256.Sum224([]byte(text))
	value = hex.EncodeToString(sum[:])
	return prefix + value[:63-len(prefix)], value
}
