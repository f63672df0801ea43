// Package store hides that one etcd holds the objects of many logical clusters.
//
// Above it are unmodified Kubernetes registries, which believe that there is one
// cluster; below it is etcd. The cluster of an object is a segment of its key
// and nothing else: it is inserted on the way in, compared on every write, and
// read back from the key on the way out. No other package builds keys.
package store
