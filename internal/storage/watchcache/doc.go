// Package watchcache hides from where the objects of lists and watches are read: from a watch
// cache, from the change feed, or from etcd.
//
// One [cacher.Cache] serves all clusters. A built-in kind has one. A custom resource has one while
// lists read much of it, and the cache keeps the stored values, which each schema decodes when they
// are read. Watches of custom resources follow the change feed, as [watches.Source].
package watchcache
