package bind

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/yaml"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/apis/crds"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tree"
	"github.com/unforked/kcp/internal/values"
)

// schemaPrefix has as many characters of the hash of a schema as the prefix in its name.
const schemaPrefix = 10

// Bootstrap creates what the server needs to share APIs, unless it exists: the cluster of the
// definitions of bound schemas, the cluster of the shard, and the built-in exports, to which the
// root workspace and the shard are bound.
// A server with other schemas than the last one adds them, and names them in its exports.
func (a *APIs) Bootstrap(ctx context.Context) error {
	if err := a.workspaces.MakeSystem(ctx, cluster.BoundDefinitions); err != nil {
		return err
	}
	if !a.binds() {
		return nil
	}
	var refs []tree.DefaultExport
	for _, b := range tenancy.BuiltIns() {
		if err := a.export(ctx, b); err != nil {
			return fmt.Errorf("export %s: %w", b.Name, err)
		}
		if len(b.Kinds) == 0 {
			continue
		}
		refs = append(refs, tree.DefaultExport{APIExportReference: tenancyapi.APIExportReference{Path: string(cluster.Root), Export: b.Name}})
	}
	if _, made := a.workspaces.Tree.Cluster(cluster.Shard); !made { // a start writes nothing that is there: the disk may be full
		if err := a.workspaces.MakeCluster(ctx, cluster.Shard); err != nil {
			return err
		}
	}
	for _, c := range []cluster.Name{cluster.Root, cluster.Shard} {
		waits, err := a.Bind(ctx, c, refs, false)
		if err == nil && len(waits) > 0 {
			err = fmt.Errorf("%s cannot bind the built-in exports: %s", c, waits[0].Message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// binds reports whether this server can bind exports. Without CustomResourceDefinitions it
// cannot, and has the kinds of its built-in exports in every workspace.
func (a *APIs) binds() bool { return a.store.Serves(serve.CustomResourceDefinitions()) }

// export creates or updates a built-in export, with its schemas.
func (a *APIs) export(ctx context.Context, b tenancy.BuiltIn) error {
	e := &apisv1alpha2.APIExport{}
	rev, err := a.store.ReadInto(ctx, ExportResource().Key(cluster.Root, "", b.Name), e)
	if err != nil {
		return err
	}
	if rev == 0 {
		e = &apisv1alpha2.APIExport{ObjectMeta: newMeta("", b.Name)}
		e.Annotations = map[string]string{core.PathAnnotation: string(cluster.Root)}
		if b.Limited {
			e.Spec.MaximalPermissionPolicy = &apisv1alpha2.MaximalPermissionPolicy{Local: &apisv1alpha2.LocalPolicy{}}
		}
		if b.Everywhere {
			if err := a.workspaces.Allow(ctx, b); err != nil {
				return err
			}
			if err := a.workspaces.DefaultTo(ctx, b.Name); err != nil {
				return err
			}
		}
	}
	var resources []apisv1alpha2.ResourceSchema
	for _, kind := range b.Kinds {
		r, err := a.builtInSchema(ctx, kind)
		if err != nil {
			return err
		}
		resources = append(resources, *r)
	}
	if rev == 0 || !equality.Semantic.DeepEqual(e.Spec.Resources, resources) {
		e.Spec.Resources = resources
		e.Generation++
		if err := a.storeExport(ctx, e, rev); err != nil {
			return err
		}
	}
	return a.prepare(ctx, ExportName{cluster.Root, b.Name})
}

// storeExport stores a built-in export, with its identity and its APIExportEndpointSlice.
func (a *APIs) storeExport(ctx context.Context, e *apisv1alpha2.APIExport, rev int64) error {
	if err := a.settleExport(ctx, cluster.Root, e); err != nil {
		return err
	}
	stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
	if err != nil {
		return err
	}
	slice, err := a.slice(ctx, cluster.Root, e)
	if err != nil {
		return err
	}
	rev, err = a.store.Commit(ctx, append(slice, store.Write{Resource: ExportResource(), Cluster: cluster.Root, Object: stored, Expect: rev}))
	if storage.IsExist(err) || storage.IsConflict(err) { // another server starts at the same time
		return a.store.Feed().CatchUp(ctx)
	}
	if err != nil {
		return err
	}
	return a.store.Feed().Await(ctx, rev)
}

// builtInSchema returns a resource of a built-in export. It creates its schema, unless that
// exists. The name has a hash of the schema, so that a changed one has another name.
func (a *APIs) builtInSchema(ctx context.Context, kind string) (*apisv1alpha2.ResourceSchema, error) {
	text, err := crds.YAML(kind)
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		return nil, err
	}
	s, err := apisv1alpha1.FromCustomResourceDefinition(crd, "v")
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(s.Spec)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(spec)
	name := apisv1alpha1.SchemaName{Prefix: "v" + hex.EncodeToString(hash[:])[:schemaPrefix]}
	name.Group, name.Resource = s.Spec.Group, s.Spec.Names.Plural
	annotations := s.Annotations
	s.ObjectMeta = newMeta("", name.String())
	s.Annotations, s.Generation = annotations, 1
	r := &apisv1alpha2.ResourceSchema{Group: name.Group, Name: name.Resource, Schema: s.Name, Storage: apisv1alpha2.ResourceStorage{CRD: &apisv1alpha2.CRDStorage{}}}
	if rev, _, err := a.store.Revision(ctx, SchemaResource().Key(cluster.Root, "", s.Name)); err != nil || rev != 0 {
		return r, err
	}
	stored, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIResourceSchema"))
	if err != nil {
		return nil, err
	}
	rev, err := a.store.Commit(ctx, []store.Write{{Resource: SchemaResource(), Cluster: cluster.Root, Object: stored}})
	if storage.IsExist(err) {
		return r, a.store.Feed().CatchUp(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r, a.store.Feed().Await(ctx, rev)
}

// RootBinding reports whether a binding of the root workspace is to a built-in export.
func (a *APIs) RootBinding(name string) bool {
	b := a.Bindings.Get(cluster.Root, name)
	return b != nil && slices.ContainsFunc(tenancy.BuiltIns(), func(x tenancy.BuiltIn) bool { return b.Export == ExportName{cluster.Root, x.Name} })
}
