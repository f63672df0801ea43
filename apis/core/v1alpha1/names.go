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

	// ForceDeleteAnnotation has a Workspace, or a LogicalCluster, that is being deleted
	// go with everything in it, whatever terminators and finalizers are left. Its
	// value says why. Operators alone set it.
	ForceDeleteAnnotation = "core.kcp.io/force-delete"

	// ForceDeletedByAnnotation holds who set [ForceDeleteAnnotation].
	ForceDeletedByAnnotation = "core.kcp.io/force-deleted-by"

	// MaxTotalObjectsAnnotation limits how many objects a logical cluster may
	// hold. Zero and below mean no limit.
	MaxTotalObjectsAnnotation = "core.kcp.io/max-total-objects"

	// ReplicateAnnotation lists, separated by commas, the API groups that want
	// other shards to see the object.
	ReplicateAnnotation = "internal.kcp.io/replicate"
)

const (
	// PhaseLabel repeats status.phase on LogicalClusters and Workspaces, so
	// that they can be selected by it.
	PhaseLabel = "tenancy.kcp.io/phase"

	// InitializerLabelPrefix begins the key of the label that a LogicalCluster
	// has for each initializer that is still to finish. See [Initializer.Label].
	InitializerLabelPrefix = "initializer.internal.kcp.io/"

	// TerminatorLabelPrefix begins the key of the label that a LogicalCluster
	// has for each terminator that is still to finish. See [Terminator.Label].
	TerminatorLabelPrefix = "terminator.internal.kcp.io/"

	// DescendantsLabel, with the value "true", has a ClusterRoleBinding hold not
	// only in its own logical cluster, but in all that are below.
	DescendantsLabel = "rbac.kcp.io/descendants"
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
	// WorkspaceInitialized tells that no initializer is left to finish.
	WorkspaceInitialized conditions.Type = "WorkspaceInitialized"

	// WorkspaceContentDeleted tells, for a logical cluster that is being
	// deleted, whether its content is gone.
	WorkspaceContentDeleted conditions.Type = "WorkspaceContentDeleted"

	// APIBindingsInitialized tells that the bindings which the type of the
	// workspace asks for exist and are bound.
	APIBindingsInitialized conditions.Type = "APIBindingsInitialized"

	// APIBindingsReconciled tells that the bindings are kept as the type of the
	// workspace asks for, where its life cycle is to maintain them.
	APIBindingsReconciled conditions.Type = "APIBindingsReconciled"
)

// Reasons for conditions of LogicalClusters not to be True.
const (
	// InitializerExists is why [WorkspaceInitialized] is False while initializers are left.
	InitializerExists = "InitializerExists"

	// WorkspaceDisappeared is why [WorkspaceInitialized] is False when the
	// logical cluster is gone although its Workspace is not.
	WorkspaceDisappeared = "WorkspaceDisappeared"

	// WaitingOnAPIBindings is why APIBindings are not initialized or reconciled
	// while some are not bound yet.
	WaitingOnAPIBindings = "WaitingOnAPIBindings"

	// WorkspaceTypesInvalid is why APIBindings are not initialized or reconciled
	// when the type of the workspace, or one that it extends, cannot be resolved.
	WorkspaceTypesInvalid = "WorkspaceTypesInvalid"

	// APIBindingErrors is why APIBindings are not initialized or reconciled when
	// some could not be created.
	APIBindingErrors = "APIBindingErrors"
)

// Label returns the label that a LogicalCluster has while i is in its status.
// Whoever runs an initializer selects logical clusters by it.
func (i Initializer) Label() (key, value string) {
	return hashLabel(InitializerLabelPrefix, string(i))
}

// Label returns the label that a LogicalCluster has while t is in its status.
// Whoever runs a terminator selects logical clusters by it.
func (t Terminator) Label() (key, value string) {
	return hashLabel(TerminatorLabelPrefix, string(t))
}

// hashLabel makes a label of text, which may contain what a label may not: the
// value is its whole hash, the key as much of the hash as lets the key,
// including the prefix, have 63 characters.
func hashLabel(prefix, text string) (key, value string) {
	sum := sha256.Sum224([]byte(text))
	value = hex.EncodeToString(sum[:])
	return prefix + value[:63-len(prefix)], value
}
