package virtual

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// A Cached is the decoded part of a ClusterCachedResource.
type Cached struct {
	Name string
	schema.GroupResource
	// Version is the version of the resource, empty for any.
	Version string
	// Part is the part of the objects that can be read.
	Part membership.Part
	// Identity is empty before the object has one.
	Identity string
	// Secret is the namespace and name of the secret of the identity.
	Secret   types.NamespacedName
	Deleting bool
}

func cachedOf(r *cacheapi.ClusterCachedResource) (*Cached, error) {
	out := &Cached{
		Name: r.Name, GroupResource: schema.GroupResource{Group: r.Spec.Group, Resource: r.Spec.Resource}, Version: r.Spec.Version,
		Identity: r.Status.IdentityHash, Deleting: r.DeletionTimestamp != nil,
	}
	if i := r.Spec.Identity; i != nil && i.SecretRef != nil {
		out.Secret = types.NamespacedName{Namespace: i.SecretRef.Namespace, Name: i.SecretRef.Name}
	}
	if r.Spec.LabelSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(r.Spec.LabelSelector)
		if err != nil {
			return nil, err // without a row, nothing is served
		}
		out.Part = membership.NewPart(selector.String())
	}
	return out, nil
}

func sliceOf(s *cacheapi.ClusterCachedResourceEndpointSlice) (*endpoints.Slice, error) {
	return &endpoints.Slice{
		Path: s.Spec.APIExport.Path, Name: s.Spec.APIExport.Name, Partition: s.Spec.Partition, Own: s.Name,
		Cached: s.Spec.ClusterCachedResource.Name,
	}, nil
}

// A sourceError means that the resource of a ClusterCachedResource cannot be read.
type sourceError struct{ reason, message string }

func (e *sourceError) Error() string { return e.message }

// source returns how cluster c serves the resource of a ClusterCachedResource.
func (x *Storage) source(c cluster.Name, gr schema.GroupResource, version string) (catalog.Found, error) {
	in, ok := x.resolver.Find(c, gr)
	switch {
	case !ok || in.Content.Storage() != catalog.Stored:
		return in, &sourceError{cacheapi.NoResources, fmt.Sprintf("this workspace stores no %s", gr)}
	case !slices.ContainsFunc(in.Content.Definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Served && (version == "" || v.Name == version)
	}):
		return in, &sourceError{cacheapi.NoResources, fmt.Sprintf("%s has no version %s", gr, version)}
	case in.Content.Definition.Spec.Scope != apiextensionsv1.ClusterScoped:
		return in, &sourceError{cacheapi.ResourceNotClusterScoped, fmt.Sprintf("%s has objects in namespaces; only cluster-scoped resources can be cached", gr)}
	}
	return in, nil
}

// create stores a new ClusterCachedResource with its identity and status. It is a
// [store.CreateHook].
func (x *Storage) create(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error {
	r, err := values.Typed[cacheapi.ClusterCachedResource](obj)
	if err != nil {
		return err
	}
	if err := x.settle(ctx, c, r); err != nil {
		return err
	}
	row, err := cachedOf(r)
	if err != nil {
		return err
	}
	if r.Status.ResourceCounts, err = x.counts(ctx, c, row); err != nil {
		return err
	}
	stored, err := values.Unstructured(r, cacheapi.GroupVersion.WithKind("ClusterCachedResource"))
	if err != nil {
		return err
	}
	rev, err := x.store.Commit(ctx, []store.Write{{Resource: x.Resource, Cluster: c, Object: stored}})
	if err != nil {
		return err
	}
	return x.store.FinishCreate(ctx, c, stored, obj, rev)
}

// Reconcile brings a ClusterCachedResource up to date with its secret and its resource. It
// removes the finalizer of one that is being deleted: there are no copies.
func (x *Storage) Reconcile(ctx context.Context, c cluster.Name, name string) error {
	r := &cacheapi.ClusterCachedResource{}
	rev, err := x.store.ReadInto(ctx, x.Resource.Key(c, "", name), r)
	if err != nil || rev == 0 {
		return err
	}
	before := r.DeepCopy()
	if r.DeletionTimestamp != nil {
		r.Finalizers = slices.DeleteFunc(r.Finalizers, func(f string) bool { return f == cacheapi.Finalizer })
		r.Status.Phase = cacheapi.PhaseDeleting
	} else if err := x.settle(ctx, c, r); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(before, r) {
		return nil
	}
	stored, err := values.Unstructured(r, cacheapi.GroupVersion.WithKind("ClusterCachedResource"))
	if err != nil {
		return err
	}
	gone := r.DeletionTimestamp != nil && len(r.Finalizers) == 0
	_, err = x.store.Commit(ctx, []store.Write{{Resource: x.Resource, Cluster: c, Object: stored, Expect: rev, Delete: gone}})
	return err
}

// settle sets what the server keeps in a ClusterCachedResource.
func (x *Storage) settle(ctx context.Context, c cluster.Name, r *cacheapi.ClusterCachedResource) error {
	identity, err := x.exports.SettleIdentity(ctx, c, exports.Identified{Name: r.Name, Kind: "ClusterCachedResource", Spec: &r.Spec.Identity, Hash: &r.Status.IdentityHash})
	if err != nil {
		return err
	}
	in, err := x.source(c, schema.GroupResource{Group: r.Spec.Group, Resource: r.Spec.Resource}, r.Spec.Version)
	valid := conditions.Condition{Type: cacheapi.ResourceValid, Status: metav1.ConditionTrue}
	started := conditions.Condition{Type: cacheapi.ReplicationStarted, Status: metav1.ConditionTrue, Reason: cacheapi.Started}
	var lacks *sourceError
	if errors.As(err, &lacks) {
		r.Status.ResourceCounts = nil
		valid.Status, valid.Severity, valid.Reason, valid.Message = metav1.ConditionFalse, conditions.SeverityError, lacks.reason, lacks.message
		started.Status, started.Severity, started.Reason, started.Message = metav1.ConditionFalse, conditions.SeverityError, lacks.reason, lacks.message
	} else {
		d := in.Content.Definition
		if r.Annotations == nil {
			r.Annotations = map[string]string{}
		}
		r.Annotations[cacheapi.KindAnnotation] = d.Status.AcceptedNames.Kind
		r.Annotations[cacheapi.ScopeAnnotation] = string(d.Spec.Scope)
	}
	for _, one := range []conditions.Condition{valid, identity, started} {
		r.Status.Conditions.Set(one)
	}
	all := r.Status.Conditions.Summary(metav1.Now().Rfc3339Copy())
	r.Status.Conditions.Set(all)
	if r.Status.Phase = cacheapi.PhaseInitializing; all.Status == metav1.ConditionTrue {
		r.Status.Phase = cacheapi.PhaseReady
	}
	if !slices.Contains(r.Finalizers, cacheapi.Finalizer) {
		r.Finalizers = append(r.Finalizers, cacheapi.Finalizer)
	}
	return nil
}

// viewPath returns the path of the virtual workspace of a ClusterCachedResourceEndpointSlice.
func viewPath(c cluster.Name, name string) string {
	return "/services/replication/" + string(c) + "/" + name
}

// ReconcileSlice brings the status of a ClusterCachedResourceEndpointSlice up to date. It
// has the URL of the virtual workspace as long as somebody binds the export.
func (x *Storage) ReconcileSlice(ctx context.Context, c cluster.Name, name string) error {
	s := &cacheapi.ClusterCachedResourceEndpointSlice{}
	rev, err := x.store.ReadInto(ctx, x.SliceResource.Key(c, "", name), s)
	if err != nil || rev == 0 || s.DeletionTimestamp != nil {
		return err
	}
	before := s.DeepCopy()
	x.endpoints.Update(ctx, c, endpoints.Spec{
		Export: s.Spec.APIExport, Partition: s.Spec.Partition, Path: func(exports.Name) string { return viewPath(c, name) },
	}, &s.Status)
	valid := conditions.Condition{Type: cacheapi.ResourceValid, Status: metav1.ConditionTrue}
	if _, ok := x.Cached.Get(c, "", s.Spec.ClusterCachedResource.Name); !ok {
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, cacheapi.NotFound
		valid.Message = "there is no ClusterCachedResource " + strconv.Quote(s.Spec.ClusterCachedResource.Name) + " in this workspace"
		s.Status.Endpoints = nil
	}
	s.Status.Conditions.Set(valid)
	if equality.Semantic.DeepEqual(before.Status, s.Status) {
		return nil
	}
	stored, err := values.Unstructured(s, cacheapi.GroupVersion.WithKind("ClusterCachedResourceEndpointSlice"))
	if err != nil {
		return err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: x.SliceResource, Cluster: c, Object: stored, Expect: rev}})
	return err
}

// CachedFor returns the ClusterCachedResource of another name for a resource of a cluster, nil if
// there is none.
func (x *Storage) CachedFor(c cluster.Name, name string, gvr schema.GroupVersionResource) *Cached {
	for _, r := range x.Cached.List(c, "") {
		if r.Name != name && r.GroupResource == gvr.GroupResource() && r.Version == gvr.Version {
			return r
		}
	}
	return nil
}
