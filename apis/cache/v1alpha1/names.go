package v1alpha1

import (
	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
)

// Annotations of copies and of ClusterCachedResources.
const (
	// ShardAnnotation holds, on a copy, the name of the shard that the original is on.
	ShardAnnotation = "kcp.io/shard"

	// OriginalResourceVersionAnnotation holds, on a copy, the resource version of the original.
	OriginalResourceVersionAnnotation = "cache.kcp.io/original-resource-version"

	// OriginalUIDAnnotation holds, on a copy, the UID of the original.
	OriginalUIDAnnotation = "cache.kcp.io/original-resource-UID"

	// KindAnnotation holds, on a ClusterCachedResource, the kind of the resource.
	KindAnnotation = "cache.kcp.io/resource-kind"

	// ScopeAnnotation holds, on a ClusterCachedResource, the scope of the resource.
	ScopeAnnotation = "cache.kcp.io/resource-scope"
)

// Finalizer keeps a ClusterCachedResource until its copies are deleted.
const Finalizer = "cache.kcp.io/clustercachedresource"

// Conditions of ClusterCachedResources.
const (
	// ResourceValid is True when the resource exists and can be published. On a
	// ClusterCachedResourceEndpointSlice it is True when the ClusterCachedResource exists.
	ResourceValid conditions.Type = "ResourceValid"

	// IdentityValid is True when the secret has the key of the identity.
	IdentityValid = apisv1alpha2.IdentityValid

	// ReplicationStarted is True when objects are published.
	ReplicationStarted conditions.Type = "ReplicationStarted"
)

// Reasons of conditions of ClusterCachedResources.
const (
	// ResourceNotClusterScoped means for [ResourceValid] that the resource is namespaced.
	ResourceNotClusterScoped = "ResourceNotClusterScoped"

	// NoResources means for [ResourceValid] that there is no such resource.
	NoResources = "NoResources"

	// Deleting means for [ResourceValid] that the ClusterCachedResource is being deleted.
	Deleting = "Deleting"

	// Started is the reason of [ReplicationStarted].
	Started = "Started"
)

// Conditions of ClusterCachedResourceEndpointSlices, besides [ResourceValid].
const (
	// APIExportValid is True when the APIExport exists.
	APIExportValid = apisv1alpha2.APIExportValid

	// PartitionValid is True when the Partition exists, or if the slice names none.
	PartitionValid = apis.PartitionValid
)

// Reasons of conditions of ClusterCachedResourceEndpointSlices that are not True, besides
// those of APIExportEndpointSlices.
const (
	// InvalidReference means for [ResourceValid] that the reference is malformed.
	InvalidReference = "ClusterCachedResourceInvalidReference"

	// NotFound means for [ResourceValid] that there is no such ClusterCachedResource.
	NotFound = "ClusterCachedResourceNotFound"
)
