package exports

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/unforked/kcp/internal/cluster"
)

// Locate returns the export that a reference in cluster c means, and whether the path leads to
// a cluster.
func (x *Exports) Locate(ctx context.Context, c cluster.Name, path, name string) (Name, bool) {
	if path == "" {
		return Name{c, name}, true
	}
	p, err := cluster.ParsePath(path)
	if err != nil {
		return Name{}, false
	}
	at, missing := x.workspaces.Tree.Resolve(ctx, p)
	return Name{at, name}, missing == ""
}

// A PathIndex finds the keys of the references to an export, whatever path they have. It does not
// depend on the tree of workspaces: it finds a reference whose path led nowhere before. It is not
// safe for concurrent use.
type PathIndex[K comparable] struct {
	by map[string]map[cluster.Name]map[string]map[K]struct{} // by the name, the cluster that the path begins with, and the rest
}

// Put adds a reference of cluster c. A malformed path leads to no export ever.
func (x *PathIndex[K]) Put(c cluster.Name, path, name string, k K) {
	at, rest, ok := split(c, path)
	if !ok {
		return
	}
	if x.by == nil {
		x.by = map[string]map[cluster.Name]map[string]map[K]struct{}{}
	}
	if x.by[name] == nil {
		x.by[name] = map[cluster.Name]map[string]map[K]struct{}{}
	}
	if x.by[name][at] == nil {
		x.by[name][at] = map[string]map[K]struct{}{}
	}
	if x.by[name][at][rest] == nil {
		x.by[name][at][rest] = map[K]struct{}{}
	}
	x.by[name][at][rest][k] = struct{}{}
}

// Drop removes a reference.
func (x *PathIndex[K]) Drop(c cluster.Name, path, name string, k K) {
	at, rest, _ := split(c, path)
	if delete(x.by[name][at][rest], k); len(x.by[name][at][rest]) == 0 {
		delete(x.by[name][at], rest)
	}
	if len(x.by[name][at]) == 0 {
		delete(x.by[name], at)
	}
	if len(x.by[name]) == 0 {
		delete(x.by, name)
	}
}

// Clear removes all references.
func (x *PathIndex[K]) Clear() { clear(x.by) }

// Find returns the references to an export of a name in a cluster.
func (x *PathIndex[K]) Find(in Ancestry, name string) []K {
	var all []K
	for i, at := range in {
		of := x.by[name][at.cluster]
		if len(of) == 0 {
			continue
		}
		var words []string
		for _, below := range slices.Backward(in[:i]) {
			words = append(words, below.name)
		}
		all = slices.AppendSeq(all, maps.Keys(of[strings.Join(words, ":")]))
	}
	return all
}

// split returns the cluster with which the path of a reference in cluster c begins, and the rest.
func split(c cluster.Name, path string) (at cluster.Name, rest string, ok bool) {
	if path == "" {
		return c, "", true
	}
	p, err := cluster.ParsePath(path)
	if err != nil {
		return "", "", false
	}
	at, words := p.Split()
	return at, strings.Join(words, ":"), true
}

// An Ancestry is a cluster and the clusters above it, the highest last. Each has the name of its
// Workspace, by which paths lead from the next one to it.
type Ancestry []ancestor

type ancestor struct {
	cluster cluster.Name
	name    string
}

// maxAncestry limits an ancestry: stored data must not make it endless.
const maxAncestry = 4096

// AncestryOf returns the ancestry of a cluster, from memory.
func (x *Exports) AncestryOf(c cluster.Name) (all Ancestry) {
	for range maxAncestry {
		root, ok := x.workspaces.Tree.Cluster(c)
		if all = append(all, ancestor{c, root.Name}); !ok || root.Parent == "" {
			break
		}
		c = root.Parent
	}
	return all
}
