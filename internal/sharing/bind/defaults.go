package bind

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

var _ tenancy.Defaults = (*APIs)(nil)

// maxReady limits the exports whose bound resources are kept.
const maxReady = 256

// A readyExport has what a binding of a new cluster to an export gets. It holds as long as the
// export and its schemas do not change.
type readyExport struct {
	export *exports.Export
	bound  []apisv1alpha2.BoundResource
}

// ready keeps the results for exports that are default bindings, so that a new workspace reads
// nothing.
type readyExports struct {
	mu   sync.Mutex
	byOf map[exports.Name]*readyExport
}

func (r *readyExports) get(name exports.Name) *readyExport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byOf[name]
}

func (r *readyExports) put(name exports.Name, e *readyExport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byOf == nil || len(r.byOf) >= maxReady {
		r.byOf = map[exports.Name]*readyExport{}
	}
	r.byOf[name] = e
}

// New implements [tenancy.Defaults]. It reads nothing from etcd, except after a change of an
// export.
func (a *APIs) New(ctx context.Context, c cluster.Name, path cluster.Path, exports []tree.DefaultExport) ([]store.Write, bool) {
	var writes []store.Write
	groups := map[string]bool{}
	for _, ref := range exports {
		name, ok := a.Exports.Locate(ctx, c, ref.Path, ref.Export)
		if !ok || !ref.Allows(name.Cluster) {
			return nil, false
		}
		ready := a.ready(name)
		if ready == nil && a.prepare(ctx, name) == nil {
			ready = a.ready(name)
		}
		if ready == nil {
			return nil, false
		}
		own := map[string]bool{}
		for _, b := range ready.bound {
			own[b.Group] = true
		}
		for group := range own {
			if groups[group] { // the names may conflict, which only the usual way finds
				return nil, false
			}
			groups[group] = true
		}
		s := &settling{APIs: a, cluster: c, binding: newDefault(c, path, ref.APIExportReference), at: metav1.Now().Rfc3339Copy()}
		s.binding.Status.APIExportClusterName = string(name.Cluster)
		s.set(apisv1alpha2.APIExportValid)
		s.binding.Spec.PermissionClaims = accepted(ready.export)
		s.complete(ready.bound)
		s.claims(ready.export)
		s.binding.Annotations = ready.export.Extra.Set(s.binding.Annotations)
		s.finish(s.binding.DeepCopy())
		stored, err := values.Unstructured(s.binding, apisv1alpha2.GroupVersion.WithKind("APIBinding"))
		if err != nil {
			return nil, false
		}
		writes = append(writes, store.Write{Resource: BindingResource(), Cluster: c, Object: stored})
	}
	return writes, true
}

// newDefault returns a default binding of a cluster, without a status.
func newDefault(c cluster.Name, path cluster.Path, ref tenancyapi.APIExportReference) *apisv1alpha2.APIBinding {
	b := &apisv1alpha2.APIBinding{ObjectMeta: values.NewMeta("", apisv1alpha2.DefaultBindingName(string(c), ref.Path, ref.Export))}
	b.Generation = 1
	b.Annotations = map[string]string{core.PathAnnotation: string(path)}
	b.Spec.Reference.Export = &apisv1alpha2.ExportReference{Path: ref.Path, Name: ref.Export}
	return b
}

// ready returns what a binding of a new cluster to an export gets, nil if that cannot be said
// from memory alone: the export is missing or new, or cannot be bound.
func (a *APIs) ready(name exports.Name) *readyExport {
	e, ok := a.Exports.Get(name.Cluster, "", name.Name)
	if !ok || e.Deleting || e.Identity == "" {
		return nil
	}
	r := a.defaults.get(name)
	if r == nil || r.export != e || a.Exports.Rollout(name) != nil || !a.current(name, "", e, func(gr keys.Resource) string {
		for _, b := range r.bound {
			if b.Group == gr.Group && b.Resource == gr.Resource {
				return b.Schema.UID
			}
		}
		return ""
	}) {
		return nil
	}
	return r
}

// current reports whether all schemas that a consumer has of an export are those whose UID of
// returns, and their definitions exist.
func (a *APIs) current(name exports.Name, consumer cluster.Name, e *exports.Export, of func(keys.Resource) string) bool {
	return !slices.ContainsFunc(e.Resources, func(r exports.Exported) bool {
		uid, defined := a.Exports.Defined(name, consumer, r)
		return uid == "" || !defined || uid != of(keys.CustomResource(r.GroupResource, e.Identity))
	})
}

// prepare computes what bindings of new clusters to an export get.
func (a *APIs) prepare(ctx context.Context, name exports.Name) error {
	e, ok := a.Exports.Get(name.Cluster, "", name.Name)
	if !ok || e.Identity == "" {
		return nil
	}
	fresh := cluster.NewName() // which has nothing that conflicts
	s := &settling{APIs: a, cluster: fresh, binding: &apisv1alpha2.APIBinding{}, at: metav1.Now()}
	bound, err := s.bound(ctx, name, e)
	if err != nil {
		return err
	}
	a.defaults.put(name, &readyExport{e, bound})
	return nil
}

// settled reports, from memory alone, whether a binding of a cluster is up to date with its export.
func (a *APIs) settled(c cluster.Name, b *Binding) bool {
	if b == nil || !b.Whole || b.Answers || b.Export.Cluster == "" {
		return false
	}
	e, ok := a.Exports.Get(b.Export.Cluster, "", b.Export.Name)
	return ok && len(e.Claims) == 0 && e.Extra.Hash() == b.Extra && !e.Deleting && e.Identity != "" && a.current(b.Export, c, e, func(r keys.Resource) string {
		for _, have := range b.Bound {
			if have.Resource() == r && have.Virtual == (e.Virtual(have.GroupResource) != nil) {
				return have.UID
			}
		}
		return ""
	})
}

// Bind implements [tenancy.Defaults]. A cluster that binds an export under another name needs no
// other binding.
func (a *APIs) Bind(ctx context.Context, c cluster.Name, exports []tree.DefaultExport, maintained bool) ([]tenancy.Wait, error) {
	var waits []tenancy.Wait
	for _, ref := range exports {
		wait, err := a.bindDefault(ctx, c, ref, maintained)
		if err != nil {
			return nil, err
		}
		if wait != nil {
			waits = append(waits, *wait)
		}
	}
	return waits, nil
}

// Bound implements [tenancy.Defaults].
func (a *APIs) Bound(ctx context.Context, c cluster.Name, exports []tree.DefaultExport) bool {
	all := a.Bindings.Of(c)
	return !slices.ContainsFunc(exports, func(ref tree.DefaultExport) bool {
		name, ok := a.Exports.Locate(ctx, c, ref.Path, ref.Export)
		if !ok || !ref.Allows(name.Cluster) {
			return true
		}
		found := false
		for own, b := range all {
			if b.Export != name || b.Deleting || !b.Complete {
				continue
			}
			if found = true; a.mustAccept(c, own, b, ref) {
				return true
			}
		}
		return !found
	})
}

// mustAccept reports whether a binding that is bound is a default one, and does not accept the claims
// of its export as that has them.
func (a *APIs) mustAccept(c cluster.Name, own string, b *Binding, ref tree.DefaultExport) bool {
	e, ok := a.Exports.Get(b.Export.Cluster, "", b.Export.Name)
	if !ok || e.Deleting || b.Lost || own != apisv1alpha2.DefaultBindingName(string(c), ref.Path, ref.Export) {
		return false
	}
	return !slices.EqualFunc(b.Claims, claimsOf(accepted(e), e.Claims), func(x, y Claim) bool {
		return x.Claimed == y.Claimed && x.Selector == y.Selector && slices.Equal(x.Verbs, y.Verbs)
	})
}

// accept makes a binding accept the claims of its export.
func (a *APIs) accept(ctx context.Context, c cluster.Name, own string, of exports.Name) error {
	b := &apisv1alpha2.APIBinding{}
	rev, err := a.store.ReadInto(ctx, BindingResource().Key(c, "", own), b)
	if err != nil || rev == 0 || b.DeletionTimestamp != nil {
		return err
	}
	if e, ok := a.Exports.Get(of.Cluster, "", of.Name); ok && !equality.Semantic.DeepEqual(b.Spec.PermissionClaims, accepted(e)) {
		b.Spec.PermissionClaims = accepted(e)
		b.Generation++
	}
	_, _, err = a.write(ctx, c, b, rev, "")
	return err
}

func (a *APIs) bindDefault(ctx context.Context, c cluster.Name, ref tree.DefaultExport, maintained bool) (*tenancy.Wait, error) {
	name, ok := a.Exports.Locate(ctx, c, ref.Path, ref.Export)
	if ok && !ref.Allows(name.Cluster) {
		return &tenancy.Wait{Export: ref.Export, Missing: true, Message: fmt.Sprintf("the workspace %s is another one than when the WorkspaceType got its APIExport %s; remove the export from spec.defaultAPIBindings and add it again", ref.Path, ref.Export)}, nil
	}
	if ok {
		_, ok = a.Exports.Get(name.Cluster, "", name.Name)
	}
	if !ok {
		return &tenancy.Wait{Export: ref.Export, Missing: true, Message: fmt.Sprintf("there is no APIExport %s at %s", ref.Export, ref.Path)}, nil
	}
	if err := a.prepare(ctx, name); err != nil && ctx.Err() != nil {
		return nil, err // other errors are those of the binding
	}
	all := a.Bindings.Of(c)
	own := apisv1alpha2.DefaultBindingName(string(c), ref.Path, ref.Export)
	if b := all[own]; maintained && b != nil && b.Export == name && !b.Deleting && b.Complete && a.mustAccept(c, own, b, ref) {
		return nil, a.accept(ctx, c, own, name)
	}
	for own, b := range all {
		switch {
		case b.Export != name || b.Deleting:
		case b.Complete:
			return nil, nil
		default:
			return &tenancy.Wait{Export: ref.Export, Message: fmt.Sprintf("APIBinding %s is not bound; see its conditions", own)}, nil
		}
	}
	b := newDefault(c, a.workspaces.Tree.PathOf(c), ref.APIExportReference)
	b.Status.APIExportClusterName = string(name.Cluster) // the path may lead elsewhere meanwhile
	if e, ok := a.Exports.Get(name.Cluster, "", name.Name); ok {
		b.Spec.PermissionClaims = accepted(e)
	}
	stored, rev, err := a.write(ctx, c, b, 0, "")
	switch {
	case storage.IsExist(err): // it is being deleted, or another process has just made it
		if err := a.store.Feed().CatchUp(ctx); err != nil {
			return nil, err
		}
		if b := a.Bindings.Get(c, b.Name); b != nil && !b.Deleting && b.Complete {
			return nil, nil
		}
		return &tenancy.Wait{Export: ref.Export, Message: fmt.Sprintf("APIBinding %s exists; it is used when its deletion is complete, or it is bound", b.Name)}, nil
	case err != nil:
		return nil, err
	}
	if err := a.store.Feed().Await(ctx, rev); err != nil {
		return nil, err
	}
	now, err := values.Typed[apisv1alpha2.APIBinding](stored)
	if err != nil || now.Status.Phase == apisv1alpha2.PhaseBound {
		return nil, err
	}
	return &tenancy.Wait{Export: ref.Export, Message: fmt.Sprintf("APIBinding %s is not bound; see its conditions", b.Name)}, nil
}
