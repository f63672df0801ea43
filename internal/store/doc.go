// Package store hides that one etcd holds the objects of many logical clusters.
//
// Unmodified Kubernetes registries use the store as if there were one cluster. The
// cluster of an object is a segment of its key and nothing else: the store adds it to
// the key of each request, compares it in every write, and sets the annotation
// kcp.io/cluster of an object from its key.
package store
