package v1alpha1

import (
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
)

// Annotations of Workspaces, besides those that LogicalClusters have too.
const (
	// ChosenClusterAnnotation holds the chosen name of a Workspace's logical cluster
	// until that is created. An interrupted creation continues with the same name.
	ChosenClusterAnnotation = "internal.tenancy.kcp.io/cluster"

	// ShardHashAnnotation holds the first eight characters of the base36 form
	// of the SHA-224 of the name of the shard that a Workspace's logical
	// cluster is on.
	// New clients find the name itself in the annotation core.kcp.io/shard.
	ShardHashAnnotation = "internal.tenancy.kcp.io/shard"

	// OwnerAnnotation holds, on Workspaces and LogicalClusters, the user who
	// created the Workspace, as JSON of [core.UserInfo].
	OwnerAnnotation = "experimental.tenancy.kcp.io/owner"

	// IsMountAnnotation, with the value "true", marks CustomResourceDefinitions whose
	// objects Workspaces are mounted from. The server does not read it.
	IsMountAnnotation = "experimental.tenancy.kcp.io/is-mount"

	// MountCAAnnotation holds, on a mounted Workspace, the CA certificates that verify
	// the server of the mount, as base64 of PEM. It is a copy of status.caBundle of the
	// object that the Workspace is mounted from.
	MountCAAnnotation = "internal.tenancy.kcp.io/mount-ca"

	// TypeAnnotation holds, on LogicalClusters, the path and name of the type
	// of the workspace, joined with a colon, as in "root:universal".
	TypeAnnotation = "internal.tenancy.kcp.io/type"

	// CheckedExportsAnnotation on a WorkspaceType has, as JSON, the logical cluster of each export in
	// spec.defaultAPIBindings that its author was allowed to bind, by "<path>:<name>".
	CheckedExportsAnnotation = "internal.tenancy.kcp.io/checked-exports"

	// TenantAnnotation is "true" on WorkspaceTypes in the root workspace whose
	// workspaces have limits of their own wherever they are, and do not share those of
	// the workspace that they are in. Only administrators of the server may set it.
	TenantAnnotation = "tenancy.kcp.io/tenant"
)

// RegionLabel holds, on Workspaces, the region of the shard that the logical
// cluster is on.
const RegionLabel = "region"

// Conditions of Workspaces. Unless a Workspace is being deleted, it is
// Unavailable while one whose type begins with "Workspace" is False.
const (
	// WorkspaceScheduled is True when a shard is chosen for the logical cluster.
	WorkspaceScheduled conditions.Type = "WorkspaceScheduled"

	// WorkspaceInitialized is True when all initializers have finished.
	WorkspaceInitialized = core.WorkspaceInitialized

	// WorkspaceContentDeleted is True when the content of the logical cluster of a
	// Workspace that is being deleted is gone.
	WorkspaceContentDeleted = core.WorkspaceContentDeleted

	// WorkspaceMountReady is True when the object that a Workspace is mounted from is
	// ready.
	WorkspaceMountReady conditions.Type = "WorkspaceMountReady"
)

// Reasons of conditions of Workspaces that are not True, besides those of
// LogicalClusters.
const (
	// Unschedulable means for [WorkspaceScheduled] that no shard may hold the logical
	// cluster.
	Unschedulable = "Unschedulable"

	// SchedulingUnknown means for [WorkspaceScheduled] that an unexpected error
	// prevents scheduling.
	SchedulingUnknown = "Unknown"

	// MountObjectNotFound means for [WorkspaceMountReady] that the object does not exist.
	MountObjectNotFound = "MountObjectNotFound"

	// MountObjectNotReady means for [WorkspaceMountReady] that the object is not ready.
	MountObjectNotReady = "MountObjectNotReady"

	// MountAnnotationInvalid means for [WorkspaceMountReady] of the existing kcp that
	// spec.mount is invalid. This server does not set it.
	MountAnnotationInvalid = "MountAnnotationInvalid"
)

// VirtualWorkspaceURLsReady is the condition of a WorkspaceType that is True when its
// status has the URLs of its virtual workspaces.
const VirtualWorkspaceURLsReady conditions.Type = "VirtualWorkspaceURLsReady"
