// Package store hides that one etcd holds the objects of many logical clusters.
//
// The cluster of an object is a segment of its key and nothing else. The store compares it in every
// write: a transaction succeeds only if the fence of the cluster, the namespace and the other
// conditions of the write are as they were when it was decided. Kubernetes' registries use the store
// through package registry, loops and the server's own code use it directly.
package store
