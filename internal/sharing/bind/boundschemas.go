package bind

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// A BoundSchema is an APIResourceSchema behind a binding of a cluster.
type BoundSchema struct {
	Provider  cluster.Name
	Name, UID string
	// Revision is that of the last change of the schema that this process knows, 0 if the schema
	// does not exist any more.
	Revision int64
}

// OnRelease makes b call f with the UID of every schema that a binding uses no more. f must
// neither block nor use b. Call it before the change feed starts.
func (b *Bindings) OnRelease(f func(uid string)) { b.released = f }

// Uses reports whether a binding uses the schema with a UID. It takes time proportional to the
// number of distinct bindings.
func (b *Bindings) Uses(uid string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, s := range b.shared {
		if slices.ContainsFunc(s.Bound, func(r Bound) bool { return r.UID == uid }) {
			return true
		}
	}
	return false
}

// BoundSchemas returns the schemas behind the bindings of a cluster. It reads nothing from etcd.
func (a *APIs) BoundSchemas(c cluster.Name) []BoundSchema {
	all := a.Bindings.schemas(c)
	for i, s := range all {
		if uid, revision := a.Exports.Schema(s.Provider, s.Name); uid == s.UID {
			all[i].Revision = revision
		}
	}
	return all
}

// schemas returns the schemas behind the bindings of a cluster, without their revisions.
func (b *Bindings) schemas(c cluster.Name) []BoundSchema {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []BoundSchema
	for _, r := range b.clusters[c] {
		for _, bound := range r.Bound {
			if catalog.IsNativeSchema(bound.UID) {
				continue
			}
			all = append(all, BoundSchema{Provider: r.Export.Cluster, Name: bound.Schema, UID: bound.UID})
		}
	}
	return all
}

// Schema returns a schema as the API has it, nil if it does not exist any more.
func (a *APIs) Schema(ctx context.Context, s BoundSchema) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	rev, err := a.store.ReadInto(ctx, exports.SchemaResource().Key(s.Provider, "", s.Name), o)
	if err != nil || rev == 0 || string(o.GetUID()) != s.UID {
		return nil, err
	}
	values.SetCluster(o, s.Provider)
	o.SetResourceVersion(a.store.ResourceVersion(rev))
	return o, nil
}

// OnSchemas makes a call f with every cluster whose [APIs.BoundSchemas] may have changed. f
// must not block. Call it before the change feed starts, and once.
func (a *APIs) OnSchemas(f func(cluster.Name)) {
	a.Exports.OnChangedSchema(func(k keys.Key) {
		for c := range a.Bindings.using(k.Cluster, k.Name) {
			f(c)
		}
	})
}

// Revision returns the revision up to which the exports and bindings are known.
func (a *APIs) Revision() int64 { return a.store.Feed().Revision() }

// Since returns the revision of a resource version.
func (a *APIs) Since(resourceVersion string) (int64, error) {
	return a.store.Epoch().Revision(resourceVersion)
}

// ResourceVersion returns the resource version of a revision.
func (a *APIs) ResourceVersion(revision int64) string { return a.store.ResourceVersion(revision) }
