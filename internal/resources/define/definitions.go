// Package define has the CustomResourceDefinitions of all clusters. It hides how they are checked,
// established and stored, and how equal ones share memory.
package define

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// Resource returns the resource that definitions are stored as.
func Resource() keys.Resource {
	return keys.NativeResource(apiextensionsv1.Resource("customresourcedefinitions"))
}

// Definitions are the CustomResourceDefinitions of all clusters, a [catalog.Source] of a
// [catalog.Resolver]. It follows the change feed. Each definition of a cluster takes a name and a
// pointer to data that equal definitions share. All methods are safe for concurrent use.
type Definitions struct {
	store    *store.Store
	resolver *catalog.Resolver
	// Offers are the native kinds that bindings can give to clusters. Set it before the change feed
	// starts.
	Offers *catalog.Offers
	native map[string][]apiextensionsv1.CustomResourceDefinitionNames // by group

	decoded  *recent.Interned[catalog.Hash, decodedDefinition]
	contents *recent.Interned[catalog.Hash, catalog.Content]
	sharing  *sharing

	mu       sync.RWMutex
	clusters map[cluster.Name]rows
	building map[cluster.Name]rows // during a rebuild, else nil
}

// rows are the definitions of one cluster, sorted by name.
type rows []row

type row struct {
	name     string
	revision int64
	deleting bool
	*decodedDefinition
}

// A decodedDefinition is the decoded part of a definition. Equal definitions of all clusters share
// one. It is immutable.
type decodedDefinition struct {
	content *catalog.Content // nil if the definition is not served
	group   string
	names   apiextensionsv1.CustomResourceDefinitionNames // accepted
	settled bool                                          // established with all names of its spec
}

// New returns the definitions in a store, whose change feed must not have
// started, and adds them to the sources of a resolver.
func New(s *store.Store, r *catalog.Resolver) *Definitions {
	d := &Definitions{
		store: s, resolver: r, native: map[string][]apiextensionsv1.CustomResourceDefinitionNames{},
		Offers:  catalog.NewOffers(nil, nil),
		decoded: recent.NewInterned[catalog.Hash, decodedDefinition](), contents: recent.NewInterned[catalog.Hash, catalog.Content](), sharing: newSharing(),
		clusters: map[cluster.Name]rows{},
	}
	s.Feed().Follow(d)
	r.Add(d)
	return d
}

// Find implements [catalog.Source]. The evidence is the definition.
func (d *Definitions) Find(c cluster.Name, gr schema.GroupResource) (catalog.Found, bool) {
	r, ok := d.row(c, catalog.DefinitionName(gr))
	if !ok || !r.serves(gr) {
		return catalog.Found{}, false
	}
	on := keys.Key{Resource: Resource(), Cluster: c, Name: r.name}
	return catalog.Found{Served: catalog.Served{Content: r.content}, Evidence: []catalog.Evidence{{Key: on, Revision: r.revision}}}, true
}

// All implements [catalog.Source].
func (d *Definitions) All(c cluster.Name) []catalog.Served {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []catalog.Served
	for _, r := range d.clusters[c] {
		if r.content != nil && r.serves(r.content.GroupResource()) {
			all = append(all, catalog.Served{Content: r.content})
		}
	}
	return all
}

// Anywhere implements [catalog.Source].
func (d *Definitions) Anywhere(gr schema.GroupResource) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, in := range d.clusters {
		if r, ok := in.find(catalog.DefinitionName(gr)); ok && r.serves(gr) {
			return true
		}
	}
	return false
}

// Holder implements [catalog.Source].
func (d *Definitions) Holder(_ cluster.Name, gr schema.GroupResource) catalog.Holder {
	return holder(catalog.DefinitionName(gr))
}

func holder(name string) catalog.Holder { return catalog.Holder{Kind: definitionKind, Name: name} }

// serves reports whether the definition makes its cluster serve gr. A definition of a bound
// schema has another name, and serves nothing in its own cluster.
func (r row) serves(gr schema.GroupResource) bool {
	return r.content != nil && r.content.GroupResource() == gr && r.name == catalog.DefinitionName(gr)
}

// Bound returns the content of the bound schema with a UID. ending is for a binding that is
// being deleted.
func (d *Definitions) Bound(uid string, ending bool) (*catalog.Content, bool) {
	var bound *catalog.Content
	if catalog.IsNativeSchema(uid) {
		bound, _ = d.Offers.FindSchema(uid)
	} else if r, ok := d.row(cluster.BoundDefinitions, uid); ok {
		bound = r.content
	}
	switch {
	case bound == nil:
		return nil, false
	case !ending:
		return bound, true
	}
	c, err := bound.Terminating()
	if err != nil {
		return nil, false // never happens: the content was decoded before
	}
	c, err = d.contents.Get(c.Hash, func() (*catalog.Content, error) { return c, nil })
	return c, err == nil
}

func (d *Definitions) row(c cluster.Name, name string) (row, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.clusters[c].find(name)
}

func (all rows) search(name string) (int, bool) {
	return slices.BinarySearchFunc(all, name, func(r row, name string) int { return strings.Compare(r.name, name) })
}

func (all rows) find(name string) (row, bool) {
	if i, ok := all.search(name); ok {
		return all[i], true
	}
	return row{}, false
}

// BoundEvidence returns the evidence that there is a definition of the bound schema with a UID.
func (d *Definitions) BoundEvidence(uid string) (catalog.Evidence, bool) {
	r, ok := d.row(cluster.BoundDefinitions, uid)
	on := keys.Key{Resource: Resource(), Cluster: cluster.BoundDefinitions, Name: uid}
	return catalog.Evidence{Key: on, Revision: r.revision}, ok
}

// AllBound returns the definitions of all bound schemas.
func (d *Definitions) AllBound() []keys.Key {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []keys.Key
	for _, r := range d.clusters[cluster.BoundDefinitions] {
		all = append(all, keys.Key{Resource: Resource(), Cluster: cluster.BoundDefinitions, Name: r.name})
	}
	return all
}

// Reserve marks names of a native resource as in use in all clusters. Call it before the
// change feed starts.
func (d *Definitions) Reserve(group string, names apiextensionsv1.CustomResourceDefinitionNames) {
	d.native[group] = append(d.native[group], names)
}

// names returns the names that are in use in a group of a cluster.
func (d *Definitions) names(c cluster.Name, group string) taken {
	t := newTaken()
	for _, n := range d.native[group] {
		t.add(n, catalog.Holder{})
	}
	for _, n := range d.resolver.Names(c, group) {
		t.add(n.Names, n.By)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, r := range d.clusters[c] { // also those that are not served
		if r.group == group {
			t.add(r.names, holder(r.name))
		}
	}
	return t
}

// NameConflict returns which of the names are in use in a group of a cluster, "" for none, and who has
// them.
func (d *Definitions) NameConflict(c cluster.Name, group string, n apiextensionsv1.CustomResourceDefinitionNames) (string, []catalog.Holder) {
	by, err := d.names(c, group).conflict(n)
	if err != nil {
		return err.Error(), by
	}
	return "", nil
}

// Deleting reports whether a definition of a cluster is being deleted.
func (d *Definitions) Deleting(c cluster.Name, name string) bool {
	r, ok := d.row(c, name)
	return ok && r.deleting
}

// AllDeleting returns the definitions of all clusters that are being deleted.
func (d *Definitions) AllDeleting() []keys.Key {
	return d.keys(func(r row) bool { return r.deleting })
}

// Unsettled returns the definitions of all clusters that are not established or lack a
// name of their spec, mostly because another definition uses the name.
func (d *Definitions) Unsettled() []keys.Key {
	return d.keys(func(r row) bool { return !r.settled })
}

func (d *Definitions) keys(which func(row) bool) []keys.Key {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []keys.Key
	for c, in := range d.clusters {
		for _, r := range in {
			if which(r) {
				all = append(all, keys.Key{Resource: Resource(), Cluster: c, Name: r.name})
			}
		}
	}
	return all
}

// UnsettledBeside returns the unsettled definitions of cluster c in the group of the
// definition called name, without that definition.
func (d *Definitions) UnsettledBeside(c cluster.Name, name string) []keys.Key {
	return d.unsettled(c, func(r row) bool { return r.name != name && r.group == catalog.ResourceOfName(name).Group })
}

// UnsettledIn returns the unsettled definitions of cluster c.
func (d *Definitions) UnsettledIn(c cluster.Name) []keys.Key {
	return d.unsettled(c, func(row) bool { return true })
}

func (d *Definitions) unsettled(c cluster.Name, which func(row) bool) []keys.Key {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []keys.Key
	for _, r := range d.clusters[c] {
		if !r.settled && which(r) {
			all = append(all, keys.Key{Resource: Resource(), Cluster: c, Name: r.name})
		}
	}
	return all
}

// Reset implements [feed.Follower].
func (d *Definitions) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.building = map[cluster.Name]rows{}
}

// Done implements [feed.Follower].
func (d *Definitions) Done() {
	d.mu.Lock()
	d.clusters, d.building = d.building, nil
	d.mu.Unlock()
	d.resolver.Rebuilt()
}

// Apply implements [feed.Follower].
func (d *Definitions) Apply(e feed.Event) {
	if e.Key.Resource != Resource() {
		return
	}
	var now *decodedDefinition
	var deleting bool
	if !e.Deleted() {
		m, err := e.Metadata(context.Background())
		if err == nil {
			deleting = m.Deleting
			now, err = d.read(e)
		}
		if err != nil {
			klog.Background().Error(err, "Definition is not served", "key", e.Key.String())
		}
	}
	if d.put(e.Key.Cluster, row{e.Key.Name, e.Revision, deleting, now}) {
		d.resolver.Changed(e.Key.Cluster, catalog.ResourceOfName(e.Key.Name))
	}
}

// put stores a row of a cluster, or removes it if it has no decodedDefinition. It reports whether
// the row is in use, rather than a part of a rebuild.
func (d *Definitions) put(c cluster.Name, r row) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	to, used := d.clusters, true
	if d.building != nil {
		to, used = d.building, false
	}
	in := to[c]
	i, found := in.search(r.name)
	switch {
	case r.decodedDefinition == nil && found:
		in = slices.Delete(in, i, i+1)
	case r.decodedDefinition == nil:
	case found:
		in[i] = r
	default:
		in = slices.Insert(in, i, r)
	}
	if to[c] = in; len(in) == 0 {
		delete(to, c)
	}
	return used
}

// read decodes a definition. Equal definitions are decoded once.
func (d *Definitions) read(e feed.Event) (*decodedDefinition, error) {
	var parts struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec   json.RawMessage                                `json:"spec"`
		Status apiextensionsv1.CustomResourceDefinitionStatus `json:"status"`
	}
	if err := e.Unmarshal(context.Background(), &parts); err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{Status: parts.Status}
	crd.Name = e.Key.Name
	names, err := json.Marshal(crd.Status.AcceptedNames)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	for _, c := range []apiextensionsv1.CustomResourceDefinitionConditionType{
		apiextensionsv1.NamesAccepted, apiextensionsv1.Established, apiextensionsv1.Terminating,
	} {
		_, _ = fmt.Fprintln(sum, apihelpers.IsCRDConditionTrue(crd, c)) // a hash never fails
	}
	if rule, relaxed := parts.Metadata.Annotations[apisv1alpha1.NameValidationAnnotation]; relaxed && e.Key.Cluster == cluster.BoundDefinitions {
		crd.Annotations = map[string]string{apisv1alpha1.NameValidationAnnotation: rule}
	}
	for _, part := range [][]byte{[]byte(crd.Name), []byte(crd.Annotations[apisv1alpha1.NameValidationAnnotation]), names, parts.Spec} {
		_, _ = fmt.Fprintln(sum, len(part))
		sum.Write(part)
	}
	var key catalog.Hash
	sum.Sum(key[:0])
	return d.decoded.Get(key, func() (*decodedDefinition, error) {
		if err := json.Unmarshal(parts.Spec, &crd.Spec); err != nil {
			return nil, err
		}
		if e.Key.Cluster == cluster.BoundDefinitions {
			crd.Name = catalog.DefinitionName(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural})
		}
		r := &decodedDefinition{
			group: crd.Spec.Group, names: crd.Status.AcceptedNames,
			settled: apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) && reflect.DeepEqual(crd.Spec.Names, crd.Status.AcceptedNames),
		}
		if !isServed(crd) {
			return r, nil
		}
		content, err := catalog.NewContent(crd)
		if err != nil {
			return nil, err
		}
		r.content, err = d.contents.Get(content.Hash, func() (*catalog.Content, error) { return content, nil })
		return r, err
	})
}

// isServed reports whether the resource of a definition is served. Without its plural
// name accepted, it would be served under the name of another definition.
func isServed(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Status.AcceptedNames.Plural == crd.Spec.Names.Plural && crd.Status.AcceptedNames.Kind != "" &&
		catalog.DefinitionName(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}) == crd.Name &&
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}
