package bind

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
)

// To returns the keys of the bindings to an export.
func (b *Bindings) To(e exports.Name) []keys.Key {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []keys.Key
	for n := range b.byExport[e.Cluster][e.Name] {
		all = append(all, BindingResource().Key(n.cluster, "", n.name))
	}
	return all
}

// Waiting returns the keys of the bindings whose path leads to the cluster of an export, and that have
// found no export there, or another than the one that was bound.
func (a *APIs) Waiting(e exports.Name) []keys.Key {
	in := a.Exports.AncestryOf(e.Cluster) // without the lock: the tree has locks of its own
	a.Bindings.mu.RLock()
	defer a.Bindings.mu.RUnlock()
	var all []keys.Key
	for _, n := range a.Bindings.waiting.Find(in, e.Name) {
		all = append(all, BindingResource().Key(n.cluster, "", n.name))
	}
	return all
}

// BoundExports returns the exports that clusters bind. It takes time proportional to the number of
// exports that bindings name.
func (b *Bindings) BoundExports() []exports.Name {
	b.mu.RLock()
	var all []exports.Name
	for c, names := range b.byExport {
		for name := range names {
			all = append(all, exports.Name{Cluster: c, Name: name})
		}
	}
	b.mu.RUnlock()
	return slices.DeleteFunc(all, func(e exports.Name) bool { return !b.Bound(e) })
}

// OnExport makes b call f with the export of every binding that changes: the one that it had, and the
// one that it has. f must not block. Call it before the change feed starts.
func (b *Bindings) OnExport(f func(exports.Name)) { b.touched = append(b.touched, f) }

// index adds or removes a row in use in b.byExport and b.waiting. The caller holds mu.
func (b *Bindings) index(n bindingName, row *Binding, add bool) {
	e := row.Export
	if row.Lost || e.Cluster == "" {
		change := b.waiting.Drop
		if add {
			change = b.waiting.Put
		}
		change(n.cluster, row.Path, row.Name, n)
	}
	of := b.byExport[e.Cluster]
	if add {
		if of == nil {
			of = map[string]map[bindingName]struct{}{}
			b.byExport[e.Cluster] = of
		}
		if of[e.Name] == nil {
			of[e.Name] = map[bindingName]struct{}{}
		}
		of[e.Name][n] = struct{}{}
		return
	}
	if delete(of[e.Name], n); len(of[e.Name]) == 0 {
		delete(of, e.Name)
	}
	if len(of) == 0 {
		delete(b.byExport, e.Cluster)
	}
}

// using returns the clusters and resources that are served by a schema of a provider.
func (b *Bindings) using(provider cluster.Name, name string) map[cluster.Name]schema.GroupResource {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all := map[cluster.Name]schema.GroupResource{} // a cluster has a resource once
	for _, bindings := range b.byExport[provider] {
		for n := range bindings {
			i, ok := searchBinding(b.clusters[n.cluster], n.name)
			if !ok {
				continue
			}
			for _, bound := range b.clusters[n.cluster][i].Bound {
				if bound.Schema == name {
					all[n.cluster] = bound.GroupResource
				}
			}
		}
	}
	return all
}

// replacements makes the clusters that bind an export leave its view when another export comes in its
// place, before their bindings say so. It is a follower of the change feed, behind exports and
// bindings.
type replacements struct {
	bindings *Bindings
	of       map[exports.Name]string // of exports, when they last changed
}

// Reset implements [feed.Follower].
func (f *replacements) Reset() {}

// Done implements [feed.Follower]. The bindings have looked at the exports.
func (f *replacements) Done() {}

// Apply implements [feed.Follower].
func (f *replacements) Apply(e feed.Event) {
	if e.Key.Resource != exports.Resource() {
		return
	}
	name := exports.Name{Cluster: e.Key.Cluster, Name: e.Key.Name}
	now := f.bindings.exports.Identity(name)
	if before, known := f.of[name]; known && before == now {
		return
	}
	if f.of[name] = now; e.Deleted() {
		delete(f.of, name)
	}
	if now != "" {
		f.bindings.readAgain(name, e.Revision)
	}
}

// readAgain sets anew what the views of exports read in the clusters that bind an export.
func (b *Bindings) readAgain(e exports.Name, rev int64) {
	members := map[cluster.Name][]membership.In[ViewList]{}
	b.mu.RLock()
	for n := range b.byExport[e.Cluster][e.Name] {
		members[n.cluster] = b.viewListsOf(b.clusters[n.cluster])
	}
	b.mu.RUnlock()
	for c, in := range members {
		b.Members.Put(c, in, rev)
	}
}

// ExportOf returns the export whose binding gives a cluster a resource.
func (b *Bindings) ExportOf(c cluster.Name, gr schema.GroupResource) (exports.Name, bool) {
	if _, owner := b.Owner(c, gr); owner != nil {
		return owner.Export, true
	}
	return exports.Name{}, false
}

// conversionCauses tells the resolver which resources an APIConversion changes. It is a follower
// of the change feed behind the table of APIConversions.
type conversionCauses struct{ bindings *Bindings }

// Reset implements [feed.Follower].
func (conversionCauses) Reset() {}

// Done implements [feed.Follower]. The bindings have told the resolver.
func (conversionCauses) Done() {}

// Apply implements [feed.Follower].
func (f conversionCauses) Apply(e feed.Event) {
	if e.Key.Resource != exports.ConversionResource() {
		return
	}
	for c, gr := range f.bindings.using(e.Key.Cluster, e.Key.Name) {
		f.bindings.resolver.Changed(c, gr)
	}
}
