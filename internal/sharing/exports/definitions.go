package exports

import (
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// An invalidSchemaError means that a schema of an export is missing, or cannot be served.
type invalidSchemaError struct{ why string }

func (e *invalidSchemaError) Error() string { return e.why }

// InvalidSchema returns an error for which [IsInvalidSchema] is true.
func InvalidSchema(why string) error { return &invalidSchemaError{why} }

// IsInvalidSchema reports whether an error means that a schema is missing or malformed.
func IsInvalidSchema(err error) bool {
	var invalid *invalidSchemaError
	return errors.As(err, &invalid)
}

// A Definition is how a consumer is served a resource of an export.
type Definition struct {
	Exported
	apisv1alpha2.BoundSchema
	// Names are the names of the resource.
	Names apiextensionsv1.CustomResourceDefinitionNames
	// Version is the version in which objects are stored.
	Version string
}

// Define returns the definition with which a consumer has a resource of an export. It makes the
// definition of a new schema.
func (x *Exports) Define(ctx context.Context, e Name, consumer cluster.Name, r Exported) (*Definition, error) {
	if r.Native {
		content, err := x.content(ctx, e.Cluster, r)
		if err != nil {
			return nil, err
		}
		d := &Definition{Exported: r, Names: content.Definition.Status.AcceptedNames, Version: content.StorageVersion()}
		d.Name, d.UID = catalog.NativeSchema(r.GroupResource)
		return d, nil
	}
	r = x.assigned(e, consumer, r)
	now, err := x.define(ctx, e.Cluster, r)
	if err != nil {
		return nil, err
	}
	return &Definition{Exported: r, BoundSchema: apisv1alpha2.BoundSchema{Name: now.Name, UID: string(now.UID)}, Names: now.Spec.Names, Version: storageVersion(now)}, nil
}

// Defined returns the UID of the schema with which a consumer has a resource of an export, and whether
// its definition exists. The UID is empty if there is no such schema.
func (x *Exports) Defined(e Name, consumer cluster.Name, r Exported) (uid string, exists bool) {
	uid = x.schemas.get(e.Cluster, x.assigned(e, consumer, r).Schema).uid
	if r.Native {
		_, uid = catalog.NativeSchema(r.GroupResource)
	}
	_, exists = x.definitions.Bound(uid, false)
	return uid, exists
}

// Missing says why resources of an export have no schema that can be served.
type Missing map[schema.GroupResource]string

// Shape returns the resources of an export that consumers store, and those that are missing.
func (x *Exports) Shape(ctx context.Context, name Name, e *Export) (*catalog.Shape, Missing, error) {
	var all []catalog.Served
	lacks := Missing{}
	for _, r := range e.Resources {
		if r.Virtual != nil {
			continue // consumers have no objects of it
		}
		content, err := x.viewed(name, r, func(r Exported) (*catalog.Content, error) { return x.content(ctx, name.Cluster, r) })
		var invalid *invalidSchemaError
		switch {
		case errors.As(err, &invalid):
			lacks[r.GroupResource] = invalid.why
			continue
		case err != nil:
			return nil, nil, err
		}
		all = append(all, catalog.Served{Content: content, Identity: e.Identity})
	}
	return catalog.NewShape(all...), lacks, nil
}

// content returns the content of a resource of an export. It makes the definition of its schema,
// unless it exists.
func (x *Exports) content(ctx context.Context, c cluster.Name, r Exported) (*catalog.Content, error) {
	if r.Native {
		content, found := x.definitions.Offers.Find(r.GroupResource)
		if !found {
			return nil, &invalidSchemaError{x.definitions.Offers.Refuse(r.GroupResource).Error()}
		}
		return content, nil
	}
	if content, found := x.definitions.Bound(x.schemas.get(c, r.Schema).uid, false); found {
		return content, nil
	}
	s, err := x.define(ctx, c, r)
	if err != nil {
		return nil, err
	}
	content, found := x.definitions.Bound(string(s.UID), false)
	if !found {
		return nil, &invalidSchemaError{fmt.Sprintf("the APIResourceSchema %s cannot be served", r.Schema)}
	}
	return content, nil
}

// define returns a schema of an export. It makes the definition that serves the bindings to
// the schema, unless it exists.
func (x *Exports) define(ctx context.Context, c cluster.Name, r Exported) (*apisv1alpha1.APIResourceSchema, error) {
	found := &apisv1alpha1.APIResourceSchema{}
	rev, err := x.store.ReadInto(ctx, SchemaResource().Key(c, "", r.Schema), found)
	switch {
	case err != nil:
		return nil, err
	case rev == 0:
		return nil, &invalidSchemaError{fmt.Sprintf("the APIResourceSchema %s of the APIExport does not exist", r.Schema)}
	case found.Spec.Group != r.Group || found.Spec.Names.Plural != r.Resource:
		return nil, &invalidSchemaError{fmt.Sprintf("the APIResourceSchema %s is not of %s", r.Schema, r.GroupResource)}
	}
	if _, known := x.definitions.Bound(string(found.UID), false); known {
		return found, nil
	}
	crd, err := found.CustomResourceDefinition()
	if err != nil {
		return nil, &invalidSchemaError{err.Error()}
	}
	rule, relaxed := crd.Annotations[apisv1alpha1.NameValidationAnnotation]
	crd.ObjectMeta = values.NewMeta("", string(found.UID))
	crd.UID = types.UID(found.UID)
	tenant := x.workspaces.Tree.Tenant(c)
	crd.Annotations = map[string]string{
		apisv1alpha2.BoundCRDAnnotation: "", "apis.kcp.io/schema-cluster": string(c), "apis.kcp.io/schema-name": found.Name, apisv1alpha2.SchemaTenantAnnotation: string(tenant),
	}
	if relaxed {
		crd.Annotations[apisv1alpha1.NameValidationAnnotation] = rule
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	crd.Status.AcceptedNames = crd.Spec.Names
	crd.Status.StoredVersions = []string{storageVersion(found)}
	for _, t := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: t, Status: apiextensionsv1.ConditionTrue, Reason: "Bound", LastTransitionTime: crd.CreationTimestamp,
		})
	}
	rev, err = x.store.Commit(ctx, []store.Write{{Resource: define.Resource(), Cluster: cluster.BoundDefinitions, Object: crd, Payer: tenant}})
	switch {
	case storage.IsExist(err): // another binding made it
		return found, x.store.Feed().CatchUp(ctx)
	case apierrors.IsForbidden(err):
		return nil, &invalidSchemaError{fmt.Sprintf("there is no room for the APIResourceSchema %s: the provider stores as much as one tenant may; after objects were deleted, change the APIExport", r.Schema)}
	case apierrors.IsTooManyRequests(err): // the text is for the provider
		return nil, apierrors.NewTooManyRequests("the provider of the APIExport writes too much; try again", 1)
	case err != nil:
		return nil, err
	}
	return found, x.store.Feed().Await(ctx, rev)
}

func storageVersion(s *apisv1alpha1.APIResourceSchema) string {
	for _, v := range s.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// Undefine deletes the definition of a schema that does not exist any more. No binding may use it.
func (x *Exports) Undefine(ctx context.Context, uid string) error {
	e, ok := x.definitions.BoundEvidence(uid)
	if !ok || x.schemas.has(uid) {
		return nil
	}
	_, err := x.store.Commit(ctx, []store.Write{{
		Resource: e.Key.Resource, Cluster: e.Key.Cluster, Expect: e.Revision, Delete: true,
		Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: uid}},
	}})
	return err
}

// Candidate returns the content with which an APIResourceSchema of a provider would be served. No
// export has to name the schema. Candidate reads it from the store.
func (x *Exports) Candidate(ctx context.Context, provider cluster.Name, name string) (*catalog.Content, error) {
	s := &apisv1alpha1.APIResourceSchema{}
	rev, err := x.store.ReadInto(ctx, SchemaResource().Key(provider, "", name), s)
	if err != nil {
		return nil, err
	}
	if rev == 0 {
		return nil, &invalidSchemaError{fmt.Sprintf("there is no APIResourceSchema %s in the workspace of the APIExport", name)}
	}
	crd, err := s.CustomResourceDefinition()
	if err != nil {
		return nil, &invalidSchemaError{err.Error()}
	}
	content, err := ContentOf(crd)
	if err != nil {
		return nil, err
	}
	content, _ = x.Converted(provider, name, content)
	return content, nil
}

// ContentOf returns the content of a definition made of an APIResourceSchema.
func ContentOf(crd *apiextensionsv1.CustomResourceDefinition) (*catalog.Content, error) {
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	crd.Status.AcceptedNames = crd.Spec.Names
	return catalog.NewContent(crd)
}
