package bind

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// An invalidSchemaError means that a schema of an export is missing, or of another resource.
type invalidSchemaError struct{ why string }

func (e *invalidSchemaError) Error() string { return e.why }

// bound returns what the binding gives its cluster, and makes the definitions of new schemas. It
// collects the conditions on which the decision depends.
func (s *settling) bound(ctx context.Context, name ExportName, e *Export) ([]apisv1alpha2.BoundResource, error) {
	before := s.binding.Status.BoundResources
	var all []apisv1alpha2.BoundResource
	taken := &takenError{}
	groups := sets.New[string]()
	for _, r := range e.Resources {
		now, err := s.wanted(ctx, name, r)
		if err != nil {
			return nil, err
		}
		if !groups.Has(r.Group) {
			groups.Insert(r.Group)
			if err := s.reserve(ctx, r.Group); err != nil {
				return nil, err
			}
		}
		if why := s.conflict(keys.CustomResource(r.GroupResource, e.Identity), now.names); why != "" {
			taken.conflicts = append(taken.conflicts, why)
			continue
		}
		now.IdentityHash = e.Identity
		b, err := now.boundTo(before)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	if len(taken.conflicts) > 0 {
		return nil, taken
	}
	for _, b := range before { // what the export has no more stays, as its objects do
		if !slices.ContainsFunc(all, func(now apisv1alpha2.BoundResource) bool { return now.Group == b.Group && now.Resource == b.Resource }) {
			all = append(all, b)
		}
	}
	return all, nil
}

// A wanted is a resource of an export that a binding shall give to its cluster.
type wanted struct {
	Exported
	apisv1alpha2.BoundSchema
	names   apiextensionsv1.CustomResourceDefinitionNames
	version string // of the storage
}

// wanted returns what the binding shall have of a resource of an export. It makes the definition of
// a new schema, and adds the condition that the definition still exists.
func (s *settling) wanted(ctx context.Context, e ExportName, r Exported) (*wanted, error) {
	if r.Native {
		content, err := s.content(ctx, e.Cluster, r)
		if err != nil {
			return nil, err
		}
		w := &wanted{Exported: r, names: content.Definition.Status.AcceptedNames, version: content.StorageVersion()}
		w.Name, w.UID = serve.NativeSchema(r.GroupResource)
		return w, nil
	}
	r = s.assigned(e, s.cluster, r)
	now, err := s.define(ctx, e.Cluster, r)
	if err != nil {
		return nil, err
	}
	s.relyOn(string(now.UID))
	return &wanted{Exported: r, BoundSchema: apisv1alpha2.BoundSchema{Name: now.Name, UID: string(now.UID)}, names: now.Spec.Names, version: storageVersion(now)}, nil
}

// boundTo returns what a binding has of a resource of an export. before is what it had.
func (w *wanted) boundTo(before []apisv1alpha2.BoundResource) (apisv1alpha2.BoundResource, error) {
	r := w.Exported
	b := apisv1alpha2.BoundResource{Group: r.Group, Resource: r.Resource, Schema: w.BoundSchema}
	if r.Virtual == nil {
		b.StorageVersions = []string{w.version}
	}
	i := slices.IndexFunc(before, func(b apisv1alpha2.BoundResource) bool { return b.Group == r.Group && b.Resource == r.Resource })
	if i < 0 {
		return b, nil
	}
	if len(before[i].StorageVersions) > 0 != (r.Virtual == nil) || serve.IsNativeSchema(before[i].Schema.UID) != r.Native {
		return b, &invalidSchemaError{fmt.Sprintf("the APIExport has another storage for %s than when it was bound; delete this APIBinding and create it again", r.GroupResource)}
	}
	for _, v := range before[i].StorageVersions { // objects may still be stored in them
		if !slices.Contains(b.StorageVersions, v) {
			b.StorageVersions = append(b.StorageVersions, v)
		}
	}
	return b, nil
}

func storageVersion(s *apisv1alpha1.APIResourceSchema) string {
	for _, v := range s.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// reserve adds the condition that no other write claims names in a group of the cluster
// meanwhile. It waits until this process knows the names that are claimed now.
func (s *settling) reserve(ctx context.Context, group string) error {
	claims := serve.Claims(s.cluster, group)
	if slices.ContainsFunc(s.relies, func(c *store.Condition) bool { return c.On == claims }) {
		return nil // groups share keys
	}
	revision, at, err := s.store.Revision(ctx, claims)
	if err != nil {
		return err
	}
	s.relies = append(s.relies, &store.Condition{
		Of: BindingResource(), On: claims, Revision: revision, Advance: true,
		Renew: func(context.Context, int64) (int64, error) { return 0, errMoved },
	})
	return s.store.Feed().Await(ctx, at)
}

// relyOn adds the condition that the definition of a schema still exists.
func (s *settling) relyOn(uid string) {
	e, _ := s.definitions.BoundEvidence(uid)
	s.relies = append(s.relies, &store.Condition{
		Of: BindingResource(), On: e.Key, Revision: e.Revision, Renew: func(context.Context, int64) (int64, error) { return 0, errMoved },
	})
}

// conflict returns why the cluster cannot have a resource through the binding, "" if it can.
func (s *settling) conflict(r keys.Resource, names apiextensionsv1.CustomResourceDefinitionNames) string {
	gr, has := r.GroupResource(), func(name string) bool {
		b := s.Bindings.Get(s.cluster, name)
		return b != nil && slices.ContainsFunc(b.Bound, func(b Bound) bool { return b.Resource() == r })
	}
	if has(s.binding.Name) {
		return ""
	}
	other, _ := s.Bindings.Owner(s.cluster, gr)
	if other == s.from && has(s.from) {
		return "" // nobody else has taken it over
	}
	if other != "" {
		return fmt.Sprintf("%s is bound by APIBinding %s", gr, other)
	}
	if tenancy.IsGiven(gr) {
		return "" // the binding gives the cluster what it has
	}
	if why := s.definitions.NameConflict(s.cluster, r.Group, names); why != "" {
		return fmt.Sprintf("%s: %s%s", gr, why, s.holders(r.Group, names))
	}
	return ""
}

// holders names the definitions of the cluster that have names of a schema, as the end of a
// sentence.
func (s *settling) holders(group string, names apiextensionsv1.CustomResourceDefinitionNames) string {
	all := s.definitions.Holders(s.cluster, group, names)
	if len(all) == 0 {
		return ""
	}
	return "; CustomResourceDefinition " + strings.Join(all, ", ") + " has them: delete it, or this APIBinding"
}

// Missing says why resources of an export have no schema that can be served.
type Missing map[schema.GroupResource]string

// Shape returns the resources of an export that consumers store, and those that are missing.
func (a *APIs) Shape(ctx context.Context, name ExportName, e *Export) (*serve.Shape, Missing, error) {
	var all []serve.Served
	lacks := Missing{}
	for _, r := range e.Resources {
		if r.Virtual != nil {
			continue // consumers have no objects of it
		}
		content, err := a.viewed(ctx, name, r)
		var invalid *invalidSchemaError
		switch {
		case errors.As(err, &invalid):
			lacks[r.GroupResource] = invalid.why
			continue
		case err != nil:
			return nil, nil, err
		}
		all = append(all, serve.Served{Content: content, Identity: e.Identity})
	}
	return serve.NewShape(all...), lacks, nil
}

// content returns the content of a resource of an export. It makes the definition of its schema,
// unless it exists.
func (a *APIs) content(ctx context.Context, c cluster.Name, r Exported) (*serve.Content, error) {
	if r.Native {
		content, found := a.definitions.Offers.Find(r.GroupResource)
		if !found {
			return nil, &invalidSchemaError{a.definitions.Offers.Refuse(r.GroupResource).Error()}
		}
		return content, nil
	}
	if content, found := a.definitions.Bound(a.schemas.get(c, r.Schema), false); found {
		return content, nil
	}
	s, err := a.define(ctx, c, r)
	if err != nil {
		return nil, err
	}
	content, found := a.definitions.Bound(string(s.UID), false)
	if !found {
		return nil, &invalidSchemaError{fmt.Sprintf("the APIResourceSchema %s cannot be served", r.Schema)}
	}
	return content, nil
}

// define returns a schema of an export. It makes the definition that serves the bindings to
// the schema, unless it exists.
func (a *APIs) define(ctx context.Context, c cluster.Name, r Exported) (*apisv1alpha1.APIResourceSchema, error) {
	found := &apisv1alpha1.APIResourceSchema{}
	rev, err := a.store.ReadInto(ctx, SchemaResource().Key(c, "", r.Schema), found)
	switch {
	case err != nil:
		return nil, err
	case rev == 0:
		return nil, &invalidSchemaError{fmt.Sprintf("the APIResourceSchema %s of the APIExport does not exist", r.Schema)}
	case found.Spec.Group != r.Group || found.Spec.Names.Plural != r.Resource:
		return nil, &invalidSchemaError{fmt.Sprintf("the APIResourceSchema %s is not of %s", r.Schema, r.GroupResource)}
	}
	if _, known := a.definitions.Bound(string(found.UID), false); known {
		return found, nil
	}
	crd, err := found.CustomResourceDefinition()
	if err != nil {
		return nil, &invalidSchemaError{err.Error()}
	}
	crd.ObjectMeta = newMeta("", string(found.UID))
	crd.UID = types.UID(found.UID)
	tenant := a.workspaces.Tree.Tenant(c)
	crd.Annotations = map[string]string{
		apisv1alpha2.BoundCRDAnnotation: "", "apis.kcp.io/schema-cluster": string(c), "apis.kcp.io/schema-name": found.Name, apisv1alpha2.SchemaTenantAnnotation: string(tenant),
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	crd.Status.AcceptedNames = crd.Spec.Names
	crd.Status.StoredVersions = []string{storageVersion(found)}
	for _, t := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: t, Status: apiextensionsv1.ConditionTrue, Reason: "Bound", LastTransitionTime: crd.CreationTimestamp,
		})
	}
	rev, err = a.store.Commit(ctx, []store.Write{{Resource: serve.CustomResourceDefinitions(), Cluster: cluster.BoundDefinitions, Object: crd, Payer: tenant}})
	switch {
	case storage.IsExist(err): // another binding made it
		return found, a.store.Feed().CatchUp(ctx)
	case apierrors.IsForbidden(err):
		return nil, &invalidSchemaError{fmt.Sprintf("there is no room for the APIResourceSchema %s: the provider stores as much as one tenant may; after objects were deleted, change the APIExport", r.Schema)}
	case apierrors.IsTooManyRequests(err): // the text is for the provider
		return nil, apierrors.NewTooManyRequests("the provider of the APIExport writes too much; try again", 1)
	case err != nil:
		return nil, err
	}
	return found, a.store.Feed().Await(ctx, rev)
}

// equal reports whether two bindings have the same labels, finalizers and status.
func equal(a, b *apisv1alpha2.APIBinding) bool {
	return reflect.DeepEqual(a.Labels, b.Labels) && slices.Equal(a.Finalizers, b.Finalizers) && equality.Semantic.DeepEqual(a.Status, b.Status)
}

// Collect deletes the definition of a schema that no binding uses and that does not exist any
// more.
func (a *APIs) Collect(ctx context.Context, uid string) error {
	e, ok := a.definitions.BoundEvidence(uid)
	if !ok || a.Bindings.Uses(uid) || a.schemas.has(uid) {
		return nil
	}
	_, err := a.store.Commit(ctx, []store.Write{{
		Resource: e.Key.Resource, Cluster: e.Key.Cluster, Expect: e.Revision, Delete: true,
		Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: uid}},
	}})
	return err
}
