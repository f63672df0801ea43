package limits

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/store"
)

// bytesMargin is leastMargin for bytes.
const bytesMargin = 16 << 20

var logicalClusters = schema.GroupResource{Group: "core.kcp.io", Resource: "logicalclusters"}

// SetBounds sets the function that returns the limits for writes in a cluster: its own, and
// those of clusters above for all below them. above returns a cluster and all clusters above
// it, and whether these are known. Both must be fast.
func (q *Quotas) SetBounds(bounds func(cluster.Name) []quota.Bound, above func(cluster.Name) ([]cluster.Name, bool)) {
	q.bounds, q.above = bounds, above
	q.tenants.SetAbove(above)
}

// bounded returns the limits of clusters for a write. Events have none, because they expire.
// An update can exceed a limit of bytes by a tenth: a deletion with finalizers takes updates.
func (q *Quotas) bounded(w store.SizedWrite) []limit {
	if q.bounds == nil || w.Exempt || Uncounted(w.GroupResource()) {
		return nil
	}
	var all []limit
	for _, b := range q.bounds(w.Cluster) {
		where := fmt.Sprintf("logical cluster %s", b.Cluster)
		if b.Tree {
			where += " and all below it"
		}
		if b.Objects > 0 && w.Creates {
			d := quota.Demand{Subject: boundSubject("objects", b.Tree), Cluster: b.Cluster, Most: b.Objects, Margin: max(leastMargin, b.Objects/marginPart)}
			d.Stored = func() int64 { objects, _ := q.tenants.Stored(b); return objects }
			all = append(all, limit{d, func(used int64) error {
				return fmt.Errorf("total object count limit reached: %s has %d objects, and the limit is %d; delete objects, or ask the operator for a higher limit", where, used, b.Objects)
			}})
		}
		if b.Bytes > 0 && w.Bytes > 0 {
			d := quota.Demand{Subject: boundSubject("bytes", b.Tree), Cluster: b.Cluster, Most: b.Bytes, Size: int64(w.Bytes), Margin: max(bytesMargin, b.Bytes/marginPart)}
			if !w.Creates {
				d.Most += b.Bytes / marginPart
			}
			d.Stored = func() int64 { _, bytes := q.tenants.Stored(b); return bytes }
			all = append(all, limit{d, func(used int64) error {
				return fmt.Errorf("total object size limit reached: %s stores %d bytes, this object has %d, and the limit is %d; delete objects, or ask the operator for a higher limit", where, used, w.Bytes, b.Bytes)
			}})
		}
	}
	return all
}

// boundSubject returns the subject of a limit. No resource has such a name.
func boundSubject(what string, tree bool) quota.Subject {
	if tree {
		what += " of the tree"
	}
	return quota.Subject{GroupResource: schema.GroupResource{Resource: what + " in total"}}
}
