package tree

import (
	"strconv"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
)

// Limits are the limits in the annotations of a LogicalCluster.
type Limits struct {
	// Own are those of the cluster, Tree those of the cluster and all below it.
	Own, Tree quota.Bound
	// Chosen is set if the number of objects has a limit, or explicitly none.
	Chosen bool
}

// limitsOf returns the limits in annotations, nil without any. A limit that is not a number
// does not count; the admission refuses it.
func limitsOf(annotations map[string]string) *Limits {
	number := func(key string) (int64, bool) {
		n, err := strconv.ParseInt(annotations[key], 10, 64)
		return max(0, n), err == nil
	}
	l, any := Limits{}, false
	for key, to := range map[string]*int64{
		core.MaxTotalObjectsAnnotation: &l.Own.Objects, core.MaxTotalBytesAnnotation: &l.Own.Bytes,
		core.MaxTreeObjectsAnnotation: &l.Tree.Objects, core.MaxTreeBytesAnnotation: &l.Tree.Bytes,
	} {
		n, ok := number(key)
		*to, any = n, any || ok
	}
	if !any {
		return nil
	}
	_, l.Chosen = number(core.MaxTotalObjectsAnnotation)
	return &l
}

// Above returns cluster c and all clusters above it. It reports false if the LogicalCluster of
// one of them is not known.
func (t *Tree) Above(c cluster.Name) ([]cluster.Name, bool) {
	var all []cluster.Name
	for range maxDepth {
		root, ok := t.Cluster(c)
		if !ok {
			return all, false
		}
		all = append(all, c)
		if root.Parent == "" {
			break
		}
		c = root.Parent
	}
	return all, true
}

// Bounds returns the limits for writes in cluster c. objects is the limit of clusters without
// one of their own, 0 for none. The root workspace, and clusters that the server still creates,
// have none.
func (t *Tree) Bounds(c cluster.Name, objects int64) []quota.Bound {
	var all []quota.Bound
	for at, steps := c, 0; at != "" && at != cluster.Root && !at.System() && steps < maxDepth; steps++ {
		root, ok := t.Cluster(at)
		if !ok {
			break
		}
		var l Limits
		if root.Limits != nil {
			l = *root.Limits
		}
		if at == c && root.Whole {
			own := quota.Bound{Cluster: c, Objects: l.Own.Objects, Bytes: l.Own.Bytes}
			if !l.Chosen {
				own.Objects = objects
			}
			if own.Objects > 0 || own.Bytes > 0 {
				all = append(all, own)
			}
		}
		if l.Tree.Objects > 0 || l.Tree.Bytes > 0 {
			all = append(all, quota.Bound{Cluster: at, Tree: true, Objects: l.Tree.Objects, Bytes: l.Tree.Bytes})
		}
		at = root.Parent
	}
	return all
}
