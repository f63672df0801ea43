// Package watches hides how a watch begins, keeps up, and ends.
//
// A watch of a [Source] follows the change feed: it begins with a list or with the changes since a
// revision, which come from memory or from the history of etcd, and it covers one cluster, all, or
// those of a [registry.Scope]. A watch of a watch cache gets a buffer here. When the server stops,
// both end with a bookmark from which their readers resume at the next process.
package watches
