package exports

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/yaml"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/apis/crds"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// schemaPrefix has as many characters of the hash of a schema as the prefix in its name.
const schemaPrefix = 10

// Provide creates or updates a built-in export, with its schemas.
func (x *Exports) Provide(ctx context.Context, b tenancy.BuiltIn) error {
	e := &apisv1alpha2.APIExport{}
	rev, err := x.store.ReadInto(ctx, Resource().Key(cluster.Root, "", b.Name), e)
	if err != nil {
		return err
	}
	if rev == 0 {
		e = &apisv1alpha2.APIExport{ObjectMeta: values.NewMeta("", b.Name)}
		e.Annotations = map[string]string{core.PathAnnotation: string(cluster.Root)}
		if b.Limited {
			e.Spec.MaximalPermissionPolicy = &apisv1alpha2.MaximalPermissionPolicy{Local: &apisv1alpha2.LocalPolicy{}}
		}
		if b.Everywhere {
			if err := x.workspaces.Allow(ctx, b); err != nil {
				return err
			}
			if err := x.workspaces.DefaultTo(ctx, b.Name); err != nil {
				return err
			}
		}
	}
	var resources []apisv1alpha2.ResourceSchema
	for _, kind := range b.Kinds {
		r, err := x.builtInSchema(ctx, kind)
		if err != nil {
			return err
		}
		resources = append(resources, *r)
	}
	if rev == 0 || !equality.Semantic.DeepEqual(e.Spec.Resources, resources) {
		e.Spec.Resources = resources
		e.Generation++
		if err := x.storeExport(ctx, e, rev); err != nil {
			return err
		}
	}
	return nil
}

// storeExport stores a built-in export, with its identity and its APIExportEndpointSlice.
func (x *Exports) storeExport(ctx context.Context, e *apisv1alpha2.APIExport, rev int64) error {
	if err := x.settleExport(ctx, cluster.Root, e); err != nil {
		return err
	}
	stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
	if err != nil {
		return err
	}
	slice, err := x.slice(ctx, cluster.Root, e)
	if err != nil {
		return err
	}
	rev, err = x.store.Commit(ctx, append(slice, store.Write{Resource: Resource(), Cluster: cluster.Root, Object: stored, Expect: rev}))
	if storage.IsExist(err) || storage.IsConflict(err) { // another server starts at the same time
		return x.store.Feed().CatchUp(ctx)
	}
	if err != nil {
		return err
	}
	return x.store.Feed().Await(ctx, rev)
}

// builtInSchema returns a resource of a built-in export. It creates its schema, unless that
// exists. The name has a hash of the schema, so that a changed one has another name.
func (x *Exports) builtInSchema(ctx context.Context, kind string) (*apisv1alpha2.ResourceSchema, error) {
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
	s.ObjectMeta = values.NewMeta("", name.String())
	s.Annotations, s.Generation = annotations, 1
	r := &apisv1alpha2.ResourceSchema{Group: name.Group, Name: name.Resource, Schema: s.Name, Storage: apisv1alpha2.ResourceStorage{CRD: &apisv1alpha2.CRDStorage{}}}
	if rev, _, err := x.store.Revision(ctx, SchemaResource().Key(cluster.Root, "", s.Name)); err != nil || rev != 0 {
		return r, err
	}
	stored, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIResourceSchema"))
	if err != nil {
		return nil, err
	}
	rev, err := x.store.Commit(ctx, []store.Write{{Resource: SchemaResource(), Cluster: cluster.Root, Object: stored}})
	if storage.IsExist(err) {
		return r, x.store.Feed().CatchUp(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r, x.store.Feed().Await(ctx, rev)
}
