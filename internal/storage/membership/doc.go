// Package membership keeps sets of clusters, each member with the part of its objects that belongs
// to the set. It hides how a set is known at each of the latest revisions of etcd, so that a list of
// the members' objects and a watch that continues it agree.
//
// Followers of the change feed decide which clusters are members, and call Put and Replace.
package membership
