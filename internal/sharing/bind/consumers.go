package bind

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/sharing/exports"
)

// A Consumer is a cluster that has a resource through a binding.
type Consumer struct {
	Cluster cluster.Name
	Bound   Bound
}

// Consumers returns the clusters that have a resource through a binding to an export.
func (b *Bindings) Consumers(e exports.Name, gr schema.GroupResource) []Consumer {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []Consumer
	for n := range b.byExport[e.Cluster][e.Name] {
		if r, bound := owner(b.clusters[n.cluster], gr); r != nil && r.name == n.name {
			all = append(all, Consumer{n.cluster, bound})
		}
	}
	return all
}

// Labelled returns the clusters whose bindings to an export have labels that a selector selects, in order.
func (b *Bindings) Labelled(e exports.Name, selector labels.Selector) []cluster.Name {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []cluster.Name
	for n := range b.byExport[e.Cluster][e.Name] {
		if i, ok := searchBinding(b.clusters[n.cluster], n.name); ok && selector.Matches(labels.Set(b.clusters[n.cluster][i].Labels)) {
			all = append(all, n.cluster)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Count returns the number of bindings to an export.
func (b *Bindings) Count(e exports.Name) int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.byExport[e.Cluster][e.Name])
}

// Served returns how the consumers of a provider are served a resource.
func (a *APIs) Served(provider cluster.Name, b Bound) (*catalog.Content, bool) {
	content, ok := a.definitions.Bound(b.UID, false)
	if !ok {
		return nil, false
	}
	content, _ = a.Exports.Converted(provider, b.Schema, content)
	return content, true
}

// mostLabels is the maximum of bytes in the labels of a binding that are kept in memory.
const mostLabels = 4 << 10

// kept returns labels, or nil if there are none or too many: consumers choose them.
func kept(labels map[string]string) map[string]string {
	size := 0
	for k, v := range labels {
		size += len(k) + len(v)
	}
	if size == 0 || size > mostLabels {
		return nil
	}
	return labels
}
