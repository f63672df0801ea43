package consumers

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/profile"
)

// mostLabels is the maximum of bytes in the labels of a namespace. Placements that select by labels do not select
// a namespace with more.
const mostLabels = 16 << 10

// mostKnown is the maximum of bytes of labels that a cache keeps. Beyond that it reads labels again.
const mostKnown = 16 << 20

// A namespace is what a Placement selects.
type namespace struct {
	labels map[string]string
	over   bool // it has more than mostLabels, and none are kept
}

// takes reports whether a Placement selects a namespace.
func (n namespace) takes(p *scheduling.Placement) bool {
	if p.Spec.NamespaceSelector == nil {
		return true
	}
	return !(n.over && byLabels(p)) && inventory.Selects(p.Spec.NamespaceSelector, n.labels)
}

// named returns a namespace of which only the name is known.
func named(name string) namespace {
	return namespace{labels: map[string]string{corev1.LabelMetadataName: name}}
}

// byLabels reports whether the labels of a namespace decide whether a Placement selects it. For others, its name does.
func byLabels(p *scheduling.Placement) bool {
	s := p.Spec.NamespaceSelector
	if s == nil {
		return false
	}
	for key := range s.MatchLabels {
		if key != corev1.LabelMetadataName {
			return true
		}
	}
	for _, e := range s.MatchExpressions {
		if e.Key != corev1.LabelMetadataName {
			return true
		}
	}
	return false
}

// namespaces are those whose labels were read for Placements. There are none in logical clusters without a Placement
// that selects by labels. The zero value is ready for use.
type namespaces struct {
	mu    sync.Mutex
	of    map[kcp.ClusterName]map[string]namespace // guarded by mu
	bytes int                                      // guarded by mu
	drops int                                      // how often some were dropped; guarded by mu
}

// get returns a namespace, if its labels are known. drops is what add and put need.
func (n *namespaces) get(key kcp.Key) (of namespace, known bool, drops int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of, known = n.of[key.Cluster][key.Namespace]
	return of, known, n.drops
}

// add stores a namespace whose labels were not known, and returns the one that is stored: another one may have come
// first. It stores nothing and reports false if some were dropped since get: a change may have been missed.
func (n *namespaces) add(key kcp.Key, of namespace, drops int) (now namespace, stored bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.drops != drops {
		return of, false
	}
	if now, known := n.of[key.Cluster][key.Namespace]; known {
		return now, true
	}
	n.set(key, of)
	return of, true
}

// put stores a namespace, and reports whether that makes a difference. It stores nothing and reports false if some
// were dropped since get.
func (n *namespaces) put(key kcp.Key, of namespace, drops int) (differs, stored bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.drops != drops {
		return false, false
	}
	before, known := n.of[key.Cluster][key.Namespace]
	n.set(key, of)
	return !known || before.over != of.over || !maps.Equal(before.labels, of.labels), true
}

// set stores a namespace. If there are too many, it drops the others. The caller holds mu.
func (n *namespaces) set(key kcp.Key, of namespace) {
	n.bytes += weigh(key, of)
	if before, known := n.of[key.Cluster][key.Namespace]; known {
		n.bytes -= weigh(key, before)
	}
	if n.bytes > mostKnown {
		n.of, n.bytes = nil, weigh(key, of)
		n.drops++
	}
	if n.of == nil {
		n.of = map[kcp.ClusterName]map[string]namespace{}
	}
	if n.of[key.Cluster] == nil {
		n.of[key.Cluster] = map[string]namespace{}
	}
	n.of[key.Cluster][key.Namespace] = of
}

// forget drops a namespace that does not exist.
func (n *namespaces) forget(key kcp.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if of, known := n.of[key.Cluster][key.Namespace]; known {
		n.bytes -= weigh(key, of)
		n.drops++
		delete(n.of[key.Cluster], key.Namespace)
	}
}

// drop drops the namespaces of a logical cluster.
func (n *namespaces) drop(cluster kcp.ClusterName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drops++
	for name, of := range n.of[cluster] {
		n.bytes -= weigh(kcp.Key{Cluster: cluster, Namespace: name}, of)
	}
	delete(n.of, cluster)
}

// weigh returns about how many bytes of memory a namespace takes.
func weigh(key kcp.Key, of namespace) int {
	size := 128 + len(key.Namespace)
	for k, v := range of.labels {
		size += 64 + len(k) + len(v)
	}
	return size
}

// selectsByLabels reports whether labels of namespaces decide in a logical cluster.
func (c *Cache) selectsByLabels(cluster kcp.ClusterName) bool {
	return slices.ContainsFunc(c.Placements.List(cluster), byLabels)
}

// read reads the labels of a namespace from the server.
func (c *Cache) read(ctx context.Context, key kcp.Key) (of namespace, exists bool, err error) {
	labels, exists, err := c.options.Labels(ctx, key.Cluster, key.Namespace)
	if !exists || err != nil {
		return of, false, err
	}
	of = named(key.Namespace)
	size := 0
	for k, v := range labels {
		size += len(k) + len(v)
	}
	if size > mostLabels {
		of.over = true
		return of, true, nil
	}
	for k, v := range labels {
		if k != corev1.LabelMetadataName {
			of.labels[k] = v
		}
	}
	return of, true, nil
}

// PlacementOf returns the Placement of the objects in the namespace of a key, the oldest one that selects it. It
// returns nil if there is none, or if the namespace does not exist. The labels of the namespace may be old until the
// loop of [Cache.Relabelled] has seen a change.
func (c *Cache) PlacementOf(ctx context.Context, key kcp.Key) (found *scheduling.Placement, err error) {
	for {
		in, known, drops := c.namespaces.get(key) // first: the Placements say whether changes are noticed from here on
		all := c.Placements.List(key.Cluster)
		switch {
		case known:
		case !slices.ContainsFunc(all, byLabels):
			in = named(key.Namespace)
		default:
			var exists, stored bool
			if in, exists, err = c.read(ctx, key); !exists || err != nil {
				return nil, err
			}
			if in, stored = c.namespaces.add(key, in, drops); !stored {
				continue
			}
		}
		for _, p := range all {
			if p.DeletionTimestamp == nil && in.takes(p) && (found == nil || before(p, found)) {
				found = p
			}
		}
		return found, nil
	}
}

// Relabelled is a source that wakes a loop with the keys of namespaces that change, in logical clusters where labels of
// namespaces decide. The loop calls [Cache.Relabel].
func (c *Cache) Relabelled() kcp.Source { return c.options.Changes(c.selectsByLabels) }

// Relabel reads the labels of a namespace, and reports whether others than before count from here on.
func (c *Cache) Relabel(ctx context.Context, key kcp.Key) (changed bool, err error) {
	for {
		_, _, drops := c.namespaces.get(key) // first, as in PlacementOf
		if !c.selectsByLabels(key.Cluster) {
			return false, nil
		}
		of, exists, err := c.read(ctx, key)
		if err != nil {
			return false, err
		}
		if !exists {
			c.namespaces.forget(key)
			return false, nil // its objects are gone, too
		}
		if differs, stored := c.namespaces.put(key, of, drops); stored {
			return differs, nil
		}
	}
}

// EachIn calls wake with the tasks of all objects in the namespace of a key that may have Assignments.
func (c *Cache) EachIn(key kcp.Key, wake func(kcp.Key)) {
	for _, k := range c.Kinds() {
		if k.Class == profile.Dependency {
			continue
		}
		for _, o := range k.Objects.List(key.Cluster) {
			if o.GetNamespace() == key.Namespace {
				wake(engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}.Task())
			}
		}
	}
}
