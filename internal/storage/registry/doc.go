// Package registry is the storage of Kubernetes' registries. It hides that the objects of a registry
// are in many logical clusters, and which of them a request reads and writes.
//
// Unmodified registries use the storage as if there were one cluster. The storage adds the cluster
// of the request to each key. The context of a request may narrow it further: to the identity of an
// export, to the part of the objects that a selector matches, or, for all clusters, to a [Scope].
package registry
