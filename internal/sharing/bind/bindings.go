package bind

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
)

// A Binding is the decoded part of an APIBinding. Equal bindings of all clusters share one. It
// is immutable.
type Binding struct {
	// Path and Name are the reference to the export, as written.
	Path, Name string
	// Export is the export that is bound; its cluster is empty before that is known.
	Export exports.Name
	// Bound has the resources that the cluster has through the binding.
	Bound []Bound
	// Claims are what the binding grants to the provider.
	Claims []Claim
	// Answers is true if there are claims, or answers to claims.
	Answers bool
	// Complete is true once the binding was bound.
	Complete bool
	// Lost is true if the export is missing, has no identity yet, or is another than the one that
	// was bound. Replaced is true only for the latter: it grants nothing then.
	Lost, Replaced bool
	// Extra is the hash of the annotations that it has from its export.
	Extra string
	// Whole is true if the binding is Ready, and has its label and finalizer.
	Whole bool
	// Deleting is true while the binding is being deleted.
	Deleting bool
	// Labels are its labels, without the one of the export. Most bindings have none. A binding with more than
	// mostLabels has none here.
	Labels map[string]string
}

// Bindings are the bindings of all clusters, a [catalog.Source]. It follows the change feed. A
// binding takes a name and a pointer to data that equal bindings share.
type Bindings struct {
	// Members are the clusters in which the view of each export reads.
	Members *membership.Groups[ViewList]

	exports     *exports.Exports
	definitions *define.Definitions
	resolver    *catalog.Resolver

	mu       sync.RWMutex
	clusters map[cluster.Name][]bindingRow // sorted by name
	building map[cluster.Name][]bindingRow // during a rebuild, else nil
	shared   map[[sha256.Size]byte]*sharedBinding
	byExport map[cluster.Name]map[string]map[bindingName]struct{} // of the rows in use, by cluster and name of the export
	waiting  exports.PathIndex[bindingName]                       // of the rows in use that have found no export
	changed  func(cluster.Name)
	touched  []func(exports.Name)
	released func(uid string)
	last     int64 // revision of the last change
}

type bindingName struct {
	cluster cluster.Name
	name    string
}

type bindingRow struct {
	name     string
	revision int64
	*sharedBinding
}

// A sharedBinding counts the rows that have it.
type sharedBinding struct {
	Binding
	hash [sha256.Size]byte
	rows int
}

func newBindings(f *feed.Feed, x *exports.Exports, d *define.Definitions, r *catalog.Resolver) *Bindings {
	b := &Bindings{
		Members: membership.NewGroups[ViewList](f.Revision), exports: x, definitions: d, resolver: r,
		clusters: map[cluster.Name][]bindingRow{}, shared: map[[sha256.Size]byte]*sharedBinding{},
		byExport: map[cluster.Name]map[string]map[bindingName]struct{}{},
	}
	f.Follow(b)
	r.Add(b)
	return b
}

// OnChange makes b call f with the cluster of every binding that changes. Call it before the
// change feed starts.
func (b *Bindings) OnChange(f func(cluster.Name)) { b.changed = f }

// Get returns a binding of a cluster, nil if there is none.
func (b *Bindings) Get(c cluster.Name, name string) *Binding {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if i, ok := searchBinding(b.clusters[c], name); ok {
		return &b.clusters[c][i].Binding
	}
	return nil
}

// Of returns the bindings of a cluster by name.
func (b *Bindings) Of(c cluster.Name) map[string]*Binding {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all := make(map[string]*Binding, len(b.clusters[c]))
	for _, r := range b.clusters[c] {
		all[r.name] = &r.Binding
	}
	return all
}

// Bound reports whether a cluster binds an export.
func (b *Bindings) Bound(e exports.Name) bool { return b.Members.Any(ViewList{Export: e}) }

// A Via is an export with the identity that it has.
type Via struct {
	Export   exports.Name
	Identity string
}

// admits reports whether a binding lets the provider of an export into its cluster. An export that
// was created again with another identity gets nothing.
func (b *Binding) admits(e Via) bool {
	return b.Export == e.Export && b.Complete && !b.Replaced && (len(b.Bound) == 0 || b.Bound[0].Identity == e.Identity)
}

// Binds reports whether a cluster binds an export.
func (b *Bindings) Binds(c cluster.Name, e Via) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.ContainsFunc(b.clusters[c], func(r bindingRow) bool { return r.admits(e) })
}

// Granted returns the claim that grants a verb on a resource of a cluster to the provider of an
// export.
func (b *Bindings) Granted(c cluster.Name, e Via, of Claimed, verb string) (Claim, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, r := range b.clusters[c] {
		if !r.admits(e) {
			continue
		}
		for _, claim := range r.Claims {
			if claim.Claimed == of && claim.Allows(verb) {
				return claim, true
			}
		}
	}
	return Claim{}, false
}

// Keys returns the keys of the bindings that are selected. It takes time proportional to the
// number of all bindings.
func (b *Bindings) Keys(selected func(*Binding) bool) []keys.Key {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []keys.Key
	for c, rows := range b.clusters {
		for _, r := range rows {
			if selected(&r.Binding) {
				all = append(all, BindingResource().Key(c, "", r.name))
			}
		}
	}
	return all
}

// Owner returns the name of the binding of a cluster that owns gr, and that binding.
func (b *Bindings) Owner(c cluster.Name, gr schema.GroupResource) (string, *Binding) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if r, _ := owner(b.clusters[c], gr); r != nil {
		return r.name, &r.Binding
	}
	return "", nil
}

// owner returns the row that has gr, and the resource in it. While a binding is being deleted, its
// successor may have the resource, too.
func owner(rows []bindingRow, gr schema.GroupResource) (found *bindingRow, as Bound) {
	for i := range rows {
		for _, bound := range rows[i].Bound {
			if bound.GroupResource == gr && (found == nil || found.Deleting && !rows[i].Deleting) {
				found, as = &rows[i], bound
			}
		}
	}
	return found, as
}

// Find implements [catalog.Source]. The evidence is the binding, and the conversion of the schema.
func (b *Bindings) Find(c cluster.Name, gr schema.GroupResource) (catalog.Found, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r, bound := owner(b.clusters[c], gr)
	if r == nil {
		return catalog.Found{}, false
	}
	content, ok := b.definitions.Bound(bound.UID, r.Deleting)
	if !ok {
		return catalog.Found{}, false
	}
	content, evidence := b.exports.Converted(r.Export.Cluster, bound.Schema, content)
	content = content.In(b.storage(r.Export, bound))
	evidence = append(evidence, catalog.Evidence{Key: BindingResource().Key(c, "", r.name), Revision: r.revision})
	return catalog.Found{Served: catalog.Served{Content: content, Identity: bound.Identity}, Evidence: evidence}, true
}

// storage returns where the objects of a bound resource are.
func (b *Bindings) storage(e exports.Name, bound Bound) catalog.Storage {
	if !bound.Virtual {
		return catalog.Stored
	}
	return b.exports.Storage(e, bound.GroupResource)
}

// All implements [catalog.Source].
func (b *Bindings) All(c cluster.Name) []catalog.Served {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []catalog.Served
	rows := b.clusters[c]
	for i, r := range rows {
		for _, bound := range r.Bound {
			if of, _ := owner(rows, bound.GroupResource); of != &rows[i] {
				continue
			}
			if content, ok := b.definitions.Bound(bound.UID, r.Deleting); ok {
				content, _ = b.exports.Converted(r.Export.Cluster, bound.Schema, content)
				content = content.In(b.storage(r.Export, bound))
				all = append(all, catalog.Served{Content: content, Identity: bound.Identity})
			}
		}
	}
	return all
}

// Anywhere implements [catalog.Source].
func (b *Bindings) Anywhere(gr schema.GroupResource) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, s := range b.shared {
		if slices.ContainsFunc(s.Bound, func(bound Bound) bool { return bound.GroupResource == gr }) {
			return true
		}
	}
	return false
}

// FindIdentity returns a resource of an identity as the export serves it to requests to all clusters.
// If no export has the identity any more, or several have, it is served as in most clusters. It takes
// time proportional to the number of distinct bindings.
func (b *Bindings) FindIdentity(gr schema.GroupResource, identity string) (catalog.Served, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	uses := map[string]int{} // by UID of the schema
	most := ""
	for _, s := range b.shared {
		for _, bound := range s.Bound {
			if bound.GroupResource != gr || bound.Identity != identity || bound.Virtual || s.Deleting {
				continue
			}
			if uses[bound.UID] += s.rows; uses[bound.UID] > uses[most] {
				most = bound.UID
			}
		}
	}
	content, ok := b.definitions.Bound(most, false)
	if of, exported := b.exports.OfIdentity(identity, gr); ok && exported {
		content = of
	}
	return catalog.Served{Content: content, Identity: identity}, ok
}

// Reset implements [feed.Follower].
func (b *Bindings) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.building = map[cluster.Name][]bindingRow{}
}

// Done implements [feed.Follower].
func (b *Bindings) Done() {
	b.mu.Lock()
	old := b.clusters
	b.clusters, b.building = b.building, nil
	for _, rows := range old {
		for _, r := range rows {
			b.release(r.sharedBinding)
		}
	}
	members := map[cluster.Name][]membership.In[ViewList]{}
	clear(b.byExport)
	b.waiting.Clear()
	for c, rows := range b.clusters {
		members[c] = b.viewListsOf(rows)
		for _, r := range rows {
			b.index(bindingName{c, r.name}, &r.Binding, true)
		}
	}
	last := b.last
	b.mu.Unlock()
	b.Members.Replace(members, last)
	b.resolver.Rebuilt()
	for _, rows := range []map[cluster.Name][]bindingRow{old, b.clusters} { // any of them may have changed
		for c := range rows {
			if b.changed != nil {
				b.changed(c)
			}
		}
	}
}

// Apply implements [feed.Follower].
func (b *Bindings) Apply(e feed.Event) {
	if e.Key.Resource != BindingResource() {
		return
	}
	var now *Binding
	if !e.Deleted() {
		var err error
		if now, err = decodeBinding(e); err != nil {
			klog.Background().Error(err, "Binding is ignored", "key", e.Key.String())
		}
	}
	before, members, used := b.put(e, now)
	if !used {
		return
	}
	b.Members.Put(e.Key.Cluster, members, e.Revision)
	for _, of := range []*Binding{before, now} {
		if of != nil {
			for _, bound := range of.Bound {
				b.resolver.Changed(e.Key.Cluster, bound.GroupResource)
			}
			for _, f := range b.touched {
				f(of.Export)
			}
		}
	}
	if b.changed != nil {
		b.changed(e.Key.Cluster)
	}
}

// put stores a binding, or removes it if now is nil. It returns what was stored before, what the
// views of exports read in the cluster now, and whether the rows are in use, rather than a part of a
// rebuild.
func (b *Bindings) put(e feed.Event, now *Binding) (before *Binding, members []membership.In[ViewList], used bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = max(b.last, e.Revision)
	to, used := b.clusters, true
	if b.building != nil {
		to, used = b.building, false
	}
	rows := to[e.Key.Cluster]
	i, found := searchBinding(rows, e.Key.Name)
	if found {
		before = &rows[i].Binding
		defer b.release(rows[i].sharedBinding)
	}
	switch {
	case now == nil && found:
		rows = slices.Delete(rows, i, i+1)
	case now == nil:
	case found:
		rows[i] = bindingRow{e.Key.Name, e.Revision, b.share(now)}
	default:
		rows = slices.Insert(rows, i, bindingRow{e.Key.Name, e.Revision, b.share(now)})
	}
	if to[e.Key.Cluster] = rows; len(rows) == 0 {
		delete(to, e.Key.Cluster)
	}
	if used && before != nil {
		b.index(bindingName{e.Key.Cluster, e.Key.Name}, before, false)
	}
	if used && now != nil {
		b.index(bindingName{e.Key.Cluster, e.Key.Name}, now, true)
	}
	return before, b.viewListsOf(rows), used
}

func searchBinding(rows []bindingRow, name string) (int, bool) {
	return slices.BinarySearchFunc(rows, name, func(r bindingRow, name string) int { return strings.Compare(r.name, name) })
}

// share returns the shared copy of a binding, for one more row. The caller holds mu.
func (b *Bindings) share(of *Binding) *sharedBinding {
	text, _ := json.Marshal(of) // strings always encode
	hash := sha256.Sum256(text)
	s := b.shared[hash]
	if s == nil {
		s = &sharedBinding{Binding: *of, hash: hash}
		b.shared[hash] = s
	}
	s.rows++
	return s
}

// release gives up the copy of a row. The caller holds mu.
func (b *Bindings) release(s *sharedBinding) {
	if s.rows--; s.rows > 0 {
		return
	}
	delete(b.shared, s.hash)
	for _, r := range s.Bound {
		if b.released != nil {
			b.released(r.UID)
		}
	}
}

// decodeBinding decodes what is needed of an APIBinding.
func decodeBinding(e feed.Event) (*Binding, error) {
	var in struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time      `json:"deletionTimestamp"`
			Labels            map[string]string `json:"labels"`
			Annotations       map[string]string `json:"annotations"`
			Finalizers        []string          `json:"finalizers"`
		} `json:"metadata"`
		Spec struct {
			Reference apisv1alpha2.BindingReference            `json:"reference"`
			Claims    []apisv1alpha2.AcceptablePermissionClaim `json:"permissionClaims"`
		} `json:"spec"`
		Status struct {
			Cluster    string                         `json:"apiExportClusterName"`
			Bound      []apisv1alpha2.BoundResource   `json:"boundResources"`
			Phase      apisv1alpha2.BindingPhase      `json:"phase"`
			Asked      []apisv1alpha2.PermissionClaim `json:"exportPermissionClaims"`
			Conditions []struct {
				Type   conditions.Type `json:"type"`
				Status string          `json:"status"`
				Reason string          `json:"reason"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := e.Unmarshal(context.Background(), &in); err != nil {
		return nil, err
	}
	out := &Binding{
		Deleting: in.Metadata.DeletionTimestamp != nil, Complete: in.Status.Phase == apisv1alpha2.PhaseBound,
		Claims: claimsOf(in.Spec.Claims, in.Status.Asked), Answers: len(in.Spec.Claims)+len(in.Status.Asked) > 0,
		Extra: exports.ExtraOf(in.Metadata.Annotations).Hash(),
	}
	if ref := in.Spec.Reference.Export; ref != nil {
		out.Path, out.Name = ref.Path, ref.Name
		out.Export = exports.Name{Cluster: cluster.Name(in.Status.Cluster), Name: ref.Name}
		out.Whole = in.Metadata.Labels[apisv1alpha2.ExportLabel] == apisv1alpha2.ExportLabelValue(in.Status.Cluster, ref.Name) &&
			slices.Contains(in.Metadata.Finalizers, apisv1alpha2.BindingFinalizer)
	}
	delete(in.Metadata.Labels, apisv1alpha2.ExportLabel)
	out.Labels = kept(in.Metadata.Labels)
	for _, c := range in.Status.Conditions { // Ready sums up the others, but for warnings
		out.Whole = out.Whole && c.Status == string(metav1.ConditionTrue)
		if c.Type == apisv1alpha2.APIExportValid && c.Status == string(metav1.ConditionFalse) {
			out.Lost, out.Replaced = true, c.Reason == apisv1alpha2.APIExportInvalidReference
		}
	}
	out.Whole = out.Whole && len(in.Status.Conditions) > 0
	for _, r := range in.Status.Bound {
		out.Bound = append(out.Bound, Bound{
			GroupResource: schema.GroupResource{Group: r.Group, Resource: r.Resource},
			Schema:        unique.Make(r.Schema.Name).Value(),
			UID:           unique.Make(r.Schema.UID).Value(), Identity: unique.Make(r.Schema.IdentityHash).Value(),
			Virtual: len(r.StorageVersions) == 0,
		})
	}
	return out, nil
}
