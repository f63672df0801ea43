package serve

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

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
)

// CustomResourceDefinitions returns the resource that definitions are stored as.
func CustomResourceDefinitions() keys.Resource {
	return keys.NativeResource(apiextensionsv1.Resource("customresourcedefinitions"))
}

// Definitions is a cache of the custom resources that each cluster serves: those that
// the server gives it, and those that the cluster defines. It follows
// the change feed. Each definition of a cluster takes a name and a pointer to data that
// equal definitions share. All methods are safe for concurrent use.
type Definitions struct {
	store  *store.Store
	given  func(cluster.Name) *Shape
	native map[string][]apiextensionsv1.CustomResourceDefinitionNames // by group

	readings *interned[Hash, reading]
	contents *interned[Hash, Content]
	shapes   *interned[Hash, Shape]
	sharing  *sharing

	mu       sync.RWMutex
	clusters map[cluster.Name]*defined
	building map[cluster.Name]*defined // during a rebuild, else nil
	watches  map[definitionID]map[*contentWatch]struct{}
}

// defined holds the definitions of one cluster.
type defined struct {
	rows  []row  // sorted by name
	shape *Shape // including given resources; nil until the first use
}

type row struct {
	name     string
	revision int64
	deleting bool
	*reading
}

// A reading is the decoded part of a definition. Equal definitions of all clusters share
// one. It is immutable.
type reading struct {
	content *Content // nil if the definition is not served
	group   string
	names   apiextensionsv1.CustomResourceDefinitionNames // accepted
	settled bool                                          // established with all names of its spec
}

type definitionID struct {
	cluster cluster.Name
	name    string
}

// NewDefinitions returns the definitions in a store, whose change feed must not have
// started. given returns the resources that the server gives a cluster.
func NewDefinitions(s *store.Store, given func(cluster.Name) *Shape) *Definitions {
	d := &Definitions{
		store: s, given: given, native: map[string][]apiextensionsv1.CustomResourceDefinitionNames{},
		readings: newInterned[Hash, reading](), contents: newInterned[Hash, Content](), shapes: newInterned[Hash, Shape](),
		sharing:  newSharing(),
		clusters: map[cluster.Name]*defined{}, watches: map[definitionID]map[*contentWatch]struct{}{},
	}
	s.Feed().Follow(d)
	return d
}

// Find returns the custom resource gr of cluster c, and the revision of its definition.
// The revision is 0 if the server gives the resource. Given resources take precedence.
func (d *Definitions) Find(c cluster.Name, gr schema.GroupResource) (Served, int64, bool) {
	if s, ok := d.given(c).Find(gr); ok {
		return s, 0, true
	}
	r, ok := d.row(c, DefinitionName(gr))
	if !ok || r.content == nil || r.content.GroupResource() != gr {
		return Served{}, 0, false
	}
	return Served{Content: r.content}, r.revision, true
}

func (d *Definitions) row(c cluster.Name, name string) (row, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if in := d.clusters[c]; in != nil {
		if i, ok := in.search(name); ok {
			return in.rows[i], true
		}
	}
	return row{}, false
}

func (d *defined) search(name string) (int, bool) {
	return slices.BinarySearchFunc(d.rows, name, func(r row, name string) int { return strings.Compare(r.name, name) })
}

// ShapeOf returns the shape of the cluster of a request.
func (d *Definitions) ShapeOf(ctx context.Context) *Shape {
	c, _ := cluster.From(ctx)
	return d.Shape(c)
}

// Shape returns the shape of a cluster.
func (d *Definitions) Shape(c cluster.Name) *Shape {
	d.mu.RLock()
	in := d.clusters[c]
	var shape *Shape
	if in != nil {
		shape = in.shape
	}
	d.mu.RUnlock()
	switch {
	case in == nil:
		return d.given(c)
	case shape != nil:
		return shape
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	in = d.clusters[c]
	switch {
	case in == nil: // removed since the first check
		return d.given(c)
	case in.shape == nil:
		in.shape = d.shapeOf(c, in)
	}
	return in.shape
}

// shapeOf returns the shape of a cluster, which clusters with equal resources share.
func (d *Definitions) shapeOf(c cluster.Name, in *defined) *Shape {
	served := slices.Clone(d.given(c).All())
	for _, r := range in.rows {
		if r.content != nil {
			served = append(served, Served{Content: r.content})
		}
	}
	fresh := NewShape(served...)
	sum := sha256.New()
	sum.Write(fresh.Key[:])
	for _, s := range fresh.All() { // shapes with equal keys may differ in identities
		sum.Write([]byte(s.Identity + "\n"))
	}
	var key Hash
	sum.Sum(key[:0])
	shape, _ := d.shapes.get(key, func() (*Shape, error) { return fresh, nil })
	return shape
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
		t.add(n)
	}
	for _, s := range d.given(c).All() {
		if s.Content.Definition.Spec.Group == group {
			t.add(s.Content.Definition.Status.AcceptedNames)
		}
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if in := d.clusters[c]; in != nil {
		for _, r := range in.rows {
			if r.group == group {
				t.add(r.names)
			}
		}
	}
	return t
}

// Anywhere reports whether any cluster defines and serves gr. It takes time proportional
// to the number of clusters with definitions.
func (d *Definitions) Anywhere(gr schema.GroupResource) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, in := range d.clusters {
		if i, ok := in.search(DefinitionName(gr)); ok && in.rows[i].content != nil && in.rows[i].content.GroupResource() == gr {
			return true
		}
	}
	return false
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
		for _, r := range in.rows {
			if which(r) {
				all = append(all, keys.Key{Resource: CustomResourceDefinitions(), Cluster: c, Name: r.name})
			}
		}
	}
	return all
}

// UnsettledBeside returns the unsettled definitions of cluster c in the group of the
// definition called name, without that definition.
func (d *Definitions) UnsettledBeside(c cluster.Name, name string) []keys.Key {
	d.mu.RLock()
	defer d.mu.RUnlock()
	in := d.clusters[c]
	if in == nil {
		return nil
	}
	var all []keys.Key
	for _, r := range in.rows {
		if !r.settled && r.name != name && r.group == ResourceOfName(name).Group {
			all = append(all, keys.Key{Resource: CustomResourceDefinitions(), Cluster: c, Name: r.name})
		}
	}
	return all
}

// Reset implements [feed.Follower].
func (d *Definitions) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.building = map[cluster.Name]*defined{}
}

// Done implements [feed.Follower].
func (d *Definitions) Done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clusters, d.building = d.building, nil
	for id, all := range d.watches {
		var now *reading
		if in := d.clusters[id.cluster]; in != nil {
			if i, ok := in.search(id.name); ok {
				now = in.rows[i].reading
			}
		}
		end(all, now)
	}
}

// Apply implements [feed.Follower].
func (d *Definitions) Apply(e feed.Event) {
	if e.Key.Resource != CustomResourceDefinitions() {
		return
	}
	var now *reading
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
	d.mu.Lock()
	defer d.mu.Unlock()
	to := d.clusters
	if d.building != nil {
		to = d.building
	}
	put(to, e.Key.Cluster, row{e.Key.Name, e.Revision, deleting, now})
	if id := (definitionID{e.Key.Cluster, e.Key.Name}); d.building == nil {
		end(d.watches[id], now)
	}
}

// put stores a row of a cluster, or removes it if its reading is nil.
func put(to map[cluster.Name]*defined, c cluster.Name, r row) {
	in := to[c]
	if in == nil {
		in = &defined{}
	}
	i, found := in.search(r.name)
	switch {
	case r.reading == nil && !found:
		return
	case r.reading == nil:
		in.rows = slices.Delete(in.rows, i, i+1)
	case found:
		in.rows[i] = r
	default:
		in.rows = slices.Insert(in.rows, i, r)
	}
	in.shape = nil
	if to[c] = in; len(in.rows) == 0 {
		delete(to, c)
	}
}

// read decodes a definition. Equal definitions are decoded once.
func (d *Definitions) read(e feed.Event) (*reading, error) {
	var parts struct {
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
	for _, part := range [][]byte{[]byte(crd.Name), names, parts.Spec} {
		_, _ = fmt.Fprintln(sum, len(part))
		sum.Write(part)
	}
	var key Hash
	sum.Sum(key[:0])
	return d.readings.get(key, func() (*reading, error) {
		if err := json.Unmarshal(parts.Spec, &crd.Spec); err != nil {
			return nil, err
		}
		r := &reading{
			group: crd.Spec.Group, names: crd.Status.AcceptedNames,
			settled: apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) && reflect.DeepEqual(crd.Spec.Names, crd.Status.AcceptedNames),
		}
		if !isServed(crd) {
			return r, nil
		}
		content, err := NewContent(crd)
		if err != nil {
			return nil, err
		}
		r.content, err = d.contents.get(content.Hash, func() (*Content, error) { return content, nil })
		return r, err
	})
}

// isServed reports whether the resource of a definition is served. Without its plural
// name accepted, it would be served under the name of another definition.
func isServed(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Status.AcceptedNames.Plural == crd.Spec.Names.Plural && crd.Status.AcceptedNames.Kind != "" &&
		DefinitionName(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}) == crd.Name &&
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}
