// Package evolve finds the stored objects of consumers that another schema of an export would
// break: which become unreadable or invalid, which lose fields, and which use a version that
// ends. It reads each object with the present schema and with the other one, with the code that
// serves requests.
//
// A check is a walk over the range of keys that all consumers share, in parts with a limit.
package evolve

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

const (
	// maxChecked is the default and the maximum of objects that one part of a check reads.
	maxChecked = 1000
	// partTime is the time after which a part ends. Expressions of a schema may take long.
	partTime = 2 * time.Second
	// seatTime is the time after which other requests may take the processor.
	seatTime = 50 * time.Millisecond
	// pageSize is the number of objects that are read from etcd at once. Each may have the size of
	// the largest object, so it also limits the memory of a check.
	pageSize = 50
)

// A Checker checks schemas. All fields are set.
type Checker struct {
	APIs  *bind.APIs
	Store *store.Store
	// Inspect returns the inspector of a content, see [serve.Pool.Inspect].
	Inspect func(c *catalog.Content, bare bool) (*serve.Inspector, error)
	// PathOf returns the path of a cluster, "" if it has none.
	PathOf func(cluster.Name) cluster.Path
	// Compute runs a function with a processor seat of the tenant of a cluster.
	Compute func(ctx context.Context, c cluster.Name, f func()) error
}

// A Request asks for one part of a check.
type Request struct {
	Export exports.Name
	Schemas
	// Among limits the check to some consumers. Nil is for all.
	Among func(cluster.Name) bool
	// Limit is the maximum of objects. 0 is for the default.
	Limit int64
	// Continue is the Continue of the part before.
	Continue string
}

// Schemas are the schemas to check.
type Schemas struct {
	// Names are names of APIResourceSchemas in the cluster of the export.
	Names []string
	// Contents are further schemas. With neither, a check only has the versions in use.
	Contents []*catalog.Content
}

// compute runs f with a processor seat of the tenant of an export. Others wait for the seat, so f
// must not take long.
func (c *Checker) compute(ctx context.Context, e exports.Name, f func() error) error {
	var err error
	return cmp.Or(c.Compute(ctx, e.Cluster, func() { err = f() }), err)
}

// Check runs one part of a check.
func (c *Checker) Check(ctx context.Context, r Request) (*apis.APIExportCheckStatus, error) {
	if err := c.Store.Feed().CatchUp(ctx); err != nil {
		return nil, err
	}
	export, ok := c.APIs.Exports.Get(r.Export.Cluster, "", r.Export.Name)
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: apis.GroupVersion.Group, Resource: "apiexports"}, r.Export.Name)
	}
	w := &walk{Checker: c, request: r, limit: maxChecked, until: time.Now().Add(partTime), status: &apis.APIExportCheckStatus{}}
	if r.Limit > 0 {
		w.limit = min(r.Limit, maxChecked)
	}
	var targets []*target
	err := c.compute(ctx, r.Export, func() (err error) {
		targets, err = c.targets(ctx, r, export)
		return err
	})
	if err != nil {
		return nil, err
	}
	at, err := readMark(r.Continue, targets)
	if err != nil {
		return nil, err
	}
	w.status.Consumers = int64(c.APIs.Bindings.Count(r.Export))
	for i, t := range targets {
		w.status.Objects += t.objects
		w.status.Problems = append(w.status.Problems, t.problems...)
		w.status.Notes = append(w.status.Notes, t.notes...)
		if i < at.Resource || w.status.Continue != "" {
			continue
		}
		from := store.Place{}
		if i == at.Resource {
			from = store.Place{Cluster: at.Cluster, Namespace: at.Namespace, Name: at.Name}
		}
		place, done, err := w.walk(ctx, t, from)
		if err != nil {
			return nil, err
		}
		if !done {
			w.status.Continue = mark{i, place.Cluster, place.Namespace, place.Name}.String()
		}
	}
	w.summarize()
	return w.status, nil
}

// A target is a resource of an export whose objects are checked.
type target struct {
	schema.GroupResource
	stored    keys.Resource
	next      *shape // nil to look at versions only
	consumers []bind.Consumer
	objects   int64
	versions  map[string]bool // of the schemas in use
	// problems and notes are those of the status of a check.
	problems, notes []string

	shapes map[string]*shape // of consumers, by UID of their schema
}

// targets returns the resources to check, and the consumers that have objects of them.
func (c *Checker) targets(ctx context.Context, r Request, export *exports.Export) ([]*target, error) {
	next := map[schema.GroupResource]*catalog.Content{}
	contents := slices.Clone(r.Contents)
	for _, name := range r.Names {
		content, err := c.APIs.Exports.Candidate(ctx, r.Export.Cluster, name)
		if exports.IsInvalidSchema(err) {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	for _, content := range contents {
		gr := content.GroupResource()
		switch {
		case next[gr] != nil:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("there are two schemas of %s; check them one at a time", gr))
		case !slices.ContainsFunc(export.Resources, func(e exports.Exported) bool { return e.GroupResource == gr && !e.Native }):
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the APIExport %s has no resource %s with an APIResourceSchema; check a schema of one of its resources", export.Name, gr))
		}
		next[gr] = content
	}
	var all []*target
	for _, e := range export.Resources {
		if len(next) > 0 && next[e.GroupResource] == nil {
			continue
		}
		t := &target{GroupResource: e.GroupResource, stored: keys.CustomResource(e.GroupResource, export.Identity), versions: map[string]bool{}, shapes: map[string]*shape{}}
		if content := next[e.GroupResource]; content != nil {
			var err error
			if t.next, err = c.shape(content); err != nil {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("the schema of %s cannot be used: %v", e.GroupResource, err))
			}
		}
		c.gather(r, t)
		all = append(all, t)
	}
	return all, nil
}

// gather finds the consumers of a target that have objects, in the order of their keys, and the
// changes that concern all objects.
func (c *Checker) gather(r Request, t *target) {
	schemas := map[string]bind.Bound{}
	for _, consumer := range c.APIs.Bindings.Consumers(r.Export, t.GroupResource) {
		if r.Among != nil && !r.Among(consumer.Cluster) {
			continue
		}
		n := c.Store.Feed().Ledger().Objects(consumer.Cluster, t.stored)
		if n == 0 || consumer.Bound.Identity != t.stored.Identity {
			continue
		}
		t.objects += n
		t.consumers = append(t.consumers, consumer)
		schemas[consumer.Bound.UID] = consumer.Bound
	}
	slices.SortFunc(t.consumers, func(a, b bind.Consumer) int { return compare(a.Cluster, b.Cluster) })
	for _, b := range schemas {
		if content, ok := c.APIs.Served(r.Export.Cluster, b); ok {
			t.compare(content)
		}
	}
	if t.next != nil && t.next.full.External {
		t.notes = append(t.notes, fmt.Sprintf("%s: a webhook converts the objects, so they are checked only in the versions that they are stored in", t.GroupResource))
	}
}

// compare adds the versions of a content in use, and the changes from it that concern all objects.
func (t *target) compare(now *catalog.Content) {
	for _, v := range now.Definition.Spec.Versions {
		t.versions[v.Name] = true
	}
	if t.next == nil {
		return
	}
	before, after := now.Definition, t.next.content.Definition
	if a, b := before.Spec.Scope, after.Spec.Scope; a != b {
		t.problem("%s: the scope changes from %s to %s; stored objects are lost to all clients", t.GroupResource, a, b)
	}
	if a, b := before.Status.AcceptedNames.Kind, after.Status.AcceptedNames.Kind; a != b {
		t.problem("%s: the kind changes from %s to %s; stored objects have the old kind", t.GroupResource, a, b)
	}
}

func (t *target) problem(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.problems, text) {
		t.problems = append(t.problems, text)
	}
}

// compare orders clusters as the keys of their objects are ordered.
func compare(a, b cluster.Name) int { return cmp.Compare(string(a)+"/", string(b)+"/") }

// A mark is the token that continues a check: the last object that was checked.
type mark struct {
	Resource  int          `json:"r"`
	Cluster   cluster.Name `json:"c"`
	Namespace string       `json:"s,omitempty"`
	Name      string       `json:"n,omitempty"`
}

// String returns the token. It need not be sealed: users who may check an export may see its
// objects.
func (m mark) String() string {
	text, _ := json.Marshal(m) // strings always encode
	return base64.RawURLEncoding.EncodeToString(text)
}

// readMark returns the mark in a token.
func readMark(token string, targets []*target) (m mark, err error) {
	if token == "" {
		return m, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil && (m.Resource < 0 || m.Resource >= len(targets)) {
		err = fmt.Errorf("there is no resource %d", m.Resource)
	}
	if err == nil && (m.Name != "" || m.Namespace != "") {
		err = targets[m.Resource].stored.Key(m.Cluster, m.Namespace, m.Name).Validate()
	}
	if err == nil {
		_, err = cluster.ParseName(string(m.Cluster))
	}
	if err != nil {
		return mark{}, apierrors.NewBadRequest("continue is not from a check of these schemas; begin the check again without it")
	}
	return m, nil
}
