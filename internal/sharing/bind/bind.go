// Package bind gives consumers the APIs of providers. A consumer has an APIBinding to an export of
// package exports, and so the resources of the export. The package knows all bindings, decides what a
// binding gives its cluster and grants to the provider, and writes bindings.
//
// A binding resolves to a schema and the identity of its export. A consumer has no definition
// of its own, and nothing runs for it: one definition in [cluster.BoundDefinitions] serves all
// bindings to a schema, and all objects of an export are in one range of keys.
package bind

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// APIs are the exports and bindings of all clusters. Methods may be called concurrently.
type APIs struct {
	// Exports has the exports of all clusters.
	Exports *exports.Exports
	// Bindings has the bindings of all clusters.
	Bindings *Bindings

	// MayBind reports whether a user may bind an export. Set it before the first request.
	MayBind func(context.Context, user.Info, exports.Name) (bool, error)

	defaults    readyExports
	store       *store.Store
	definitions *define.Definitions
	workspaces  *tenancy.Workspaces
}

// New returns the bindings to exports in a store, whose change feed must not have started. The
// bindings become a source of the resolver, and creations of bindings are complete when they return.
func New(s *store.Store, x *exports.Exports, d *define.Definitions, r *catalog.Resolver, w *tenancy.Workspaces) *APIs {
	a := &APIs{Exports: x, Bindings: newBindings(s.Feed(), x, d, r), store: s, definitions: d, workspaces: w}
	if a.binds() {
		w.Defaults = a
	}
	s.Feed().Follow(&replacements{a.Bindings, map[exports.Name]string{}})
	s.Feed().Follow(conversionCauses{a.Bindings})
	s.OnCreate(BindingResource(), exports.InStorageVersion(BindingResource().GroupResource(), a.createBinding))
	return a
}

// OnUnused makes a call f with the UID of every schema that a binding uses no more, or that is
// deleted. f must not block. Call it before the change feed starts.
func (a *APIs) OnUnused(f func(uid string)) {
	a.Bindings.OnRelease(f)
	a.Exports.OnDeletedSchema(f)
}

// BindingResource returns the resource of APIBindings.
func BindingResource() keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: apisv1alpha2.GroupVersion.Group, Resource: "apibindings"}, "")
}
