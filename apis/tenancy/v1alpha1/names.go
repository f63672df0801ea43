package v1alpha1

import (
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// Annotations of Workspaces, beside those that they share with LogicalClusters.
const (
	// ChosenClusterAnnotation holds the name that was chosen for the logical cluster
	// of a Workspace before the logical cluster is made, so that an interrupted
	// attempt is taken up again instead of repeated under another name.
	ChosenClusterAnnotation = "internal.tenancy.kcp.io/cluster"

	// ShardHashAnnotation holds the first eight characters of the base36 form
	// of the SHA-224 of the name of the shard that a Workspace's logical
	// cluster is on.
	// New clients find the name itself in the annotation core.kcp.io/shard.
	ShardHashAnnotation = "internal.tenancy.kcp.io/shard"

	// OwnerAnnotation holds, on Workspaces and LogicalClusters, the user who
	// created the Workspace, as JSON of [core.UserInfo].
	OwnerAnnotation = "experimental.tenancy.kcp.io/owner"

	// IsMountAnnotation marks, on CustomResourceDefinitions, kinds that workspaces can be
	// mounted from while its value is "true".
	IsMountAnnotation = "experimental.tenancy.kcp.io/is-mount"

	// MountCAAnnotation holds, on a mounted Workspace, what verifies the server that
	// requests are passed on to: certificates in PEM, in base64. It is copied from the
	// object that the Workspace is mounted from, where it is status.caBundle.
	MountCAAnnotation = "internal.tenancy.kcp.io/mount-ca"

	// TypeAnnotation holds, on LogicalClusters, the path and name of the type
	// of the workspace, joined with a colon, as in "root:universal".
	TypeAnnotation = "internal.tenancy.kcp.io/type"
)

// RegionLabel holds, on Workspaces, the region of the shard that the logical
// cluster is on.
const RegionLabel = "region"

// Conditions of Workspaces. Unless a Workspace is being deleted, it is
// Unavailable while one whose type begins with "Workspace" is False.
const (
	// WorkspaceScheduled tells that a shard has been found for the logical cluster.
	WorkspaceScheduled conditions.Type = "WorkspaceScheduled"

	// WorkspaceInitialized tells that no initializer is left to finish.
	WorkspaceInitialized = core.WorkspaceInitialized

	// WorkspaceContentDeleted tells, for a Workspace that is being deleted,
	// whether the content of its logical cluster is gone.
	WorkspaceContentDeleted = core.WorkspaceContentDeleted

	// WorkspaceMountReady tells that the object which serves a mounted
	// Workspace is ready.
	WorkspaceMountReady conditions.Type = "WorkspaceMountReady"
)

// Reasons for conditions of Workspaces not to be True, beside those of
// LogicalClusters.
const (
	// Unschedulable is why [WorkspaceScheduled] is False when no shard may take
	// the logical cluster.
	Unschedulable = "Unschedulable"

	// SchedulingUnknown is why [WorkspaceScheduled] is not True when something
	// unexpected prevents scheduling.
	SchedulingUnknown = "Unknown"

	// MountObjectNotFound is why [WorkspaceMountReady] is False when the object
	// that the Workspace is mounted from does not exist.
	MountObjectNotFound = "MountObjectNotFound"

	// MountObjectNotReady is why [WorkspaceMountReady] is False when the object
	// that the Workspace is mounted from says that it is not ready.
	MountObjectNotReady = "MountObjectNotReady"

	// MountAnnotationInvalid is why [WorkspaceMountReady] is False when the
	// mount cannot be understood.
	MountAnnotationInvalid = "MountAnnotationInvalid"
)

// VirtualWorkspaceURLsReady is the condition of a WorkspaceType that tells that its
// status says where the workspaces are found that wait for it.
const VirtualWorkspaceURLsReady conditions.Type = "VirtualWorkspaceURLsReady"
