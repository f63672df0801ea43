package endpoints

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// A Slice is the decoded part of an APIExportEndpointSlice, or of a
// ClusterCachedResourceEndpointSlice.
type Slice struct {
	// Path and Name are the reference to its export.
	Path, Name string
	// Partition is the name of its Partition, empty for none.
	Partition string
	// Own is its own name.
	Own string
	// Cached is the name of its ClusterCachedResource, which is in the same cluster.
	Cached string
	// Since is the revision at which the slice got these values, at the latest.
	Since int64
}

// Like reports whether two slices have the same values. Since is none of them.
func (s *Slice) Like(other *Slice) bool {
	now := *s
	now.Since = other.Since
	return now == *other
}

func sliceOf(s *apisv1alpha1.APIExportEndpointSlice) (*Slice, error) {
	return &Slice{Path: s.Spec.APIExport.Path, Name: s.Spec.APIExport.Name, Partition: s.Spec.Partition, Own: s.Name}, nil
}

// viewPath returns the path of the virtual workspace of an export.
func viewPath(e exports.Name) string {
	return "/services/apiexport/" + string(e.Cluster) + "/" + e.Name
}

// createSlice stores a new APIExportEndpointSlice with its status. The status records the cluster of
// the export that the user may bind, so the slice never shows an export of another one. It is a
// [store.CreateHook].
func (x *Endpoints) createSlice(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error {
	s, err := values.Typed[apisv1alpha1.APIExportEndpointSlice](obj)
	if err != nil {
		return err
	}
	name, err := x.apis.Confirm(ctx, c, s.Spec.APIExport)
	if errors.Is(err, bind.ErrNotBindable) {
		err = apierrors.NewForbidden(exports.SliceResource().GroupResource(), s.Name, fmt.Errorf("unable to create APIExportEndpointSlice: %w", err))
	}
	if err != nil {
		return err
	}
	s.Status = apisv1alpha1.APIExportEndpointSliceStatus{ExportClusterName: string(name.Cluster)}
	x.Update(ctx, c, Spec{Export: s.Spec.APIExport, Partition: s.Spec.Partition, Path: viewPath}, &s.Status)
	stored, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIExportEndpointSlice"))
	if err != nil {
		return err
	}
	rev, err := x.store.Commit(ctx, []store.Write{{Resource: exports.SliceResource(), Cluster: c, Object: stored}})
	if err != nil {
		return err
	}
	return x.store.FinishCreate(ctx, c, stored, obj, rev)
}

// ReconcileSlice brings the endpoints of an APIExportEndpointSlice up to date. It has the URL of
// the virtual workspace as long as somebody binds the export.
func (x *Endpoints) ReconcileSlice(ctx context.Context, c cluster.Name, name string) error {
	s := &apisv1alpha1.APIExportEndpointSlice{}
	rev, err := x.store.ReadInto(ctx, exports.SliceResource().Key(c, "", name), s)
	if err != nil || rev == 0 || s.DeletionTimestamp != nil {
		return err
	}
	before := s.DeepCopy()
	x.Update(ctx, c, Spec{Export: s.Spec.APIExport, Partition: s.Spec.Partition, Path: viewPath}, &s.Status)
	if equality.Semantic.DeepEqual(before.Status, s.Status) {
		return nil
	}
	stored, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIExportEndpointSlice"))
	if err != nil {
		return err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: exports.SliceResource(), Cluster: c, Object: stored, Expect: rev}})
	return err
}

// A Spec is what the status of an endpoint slice of any kind depends on.
type Spec struct {
	Export apisv1alpha2.ExportReference
	// Partition is the name of its Partition, empty for none.
	Partition string
	// Path returns the path of the virtual workspace.
	Path func(exports.Name) string
}

// Update sets the status of an endpoint slice of a cluster.
func (x *Endpoints) Update(ctx context.Context, c cluster.Name, of Spec, st *apisv1alpha1.APIExportEndpointSliceStatus) {
	valid := conditions.Condition{Type: apisv1alpha2.APIExportValid, Status: metav1.ConditionTrue}
	export, located := x.apis.Exports.Locate(ctx, c, of.Export.Path, of.Export.Name)
	_, exists := x.apis.Exports.Get(export.Cluster, "", export.Name)
	st.Endpoints = nil
	selects := x.partition(c, of.Partition, st)
	switch {
	case !located || !exists:
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.APIExportNotFound
		valid.Message = "there is no APIExport " + of.Export.Name + " at this path"
	case st.ExportClusterName != "" && st.ExportClusterName != string(export.Cluster):
		// The creator of the slice was allowed to bind the export of the other one.
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.APIExportNotFound
		valid.Message = of.Export.Path + " is another workspace than when this endpoint slice was created: delete the slice and create it again"
	default:
		if st.ExportClusterName = string(export.Cluster); selects && x.apis.Bindings.Bound(export) {
			st.Endpoints = []apisv1alpha1.Endpoint{{URL: x.workspaces.BaseURL + of.Path(export)}}
		}
	}
	st.Conditions.Set(valid)
}

// partition sets what the status of a slice says about its Partition. It reports whether the
// Partition selects the shard of this server.
func (x *Endpoints) partition(c cluster.Name, name string, st *apisv1alpha1.APIExportEndpointSliceStatus) bool {
	valid := conditions.Condition{Type: apisv1alpha1.PartitionValid, Status: metav1.ConditionTrue}
	defer func() { st.Conditions.Set(valid) }()
	st.ShardSelector = ""
	if name == "" {
		return true
	}
	p, ok := x.Partitions.Get(c, "", name)
	if !ok || p.Selector == nil {
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha1.PartitionInvalidReference
		valid.Message = "there is no Partition " + name + " in this workspace"
		if ok {
			valid.Message = "the selector of the Partition " + name + " is invalid"
		}
		return false
	}
	st.ShardSelector = p.Selector.String()
	return p.Selector.Matches(x.workspaces.Labels())
}

// Selects reports whether a Partition selects the shard of this server. No name selects all.
func (x *Endpoints) Selects(c cluster.Name, name string) bool {
	p, ok := x.Partitions.Get(c, "", name)
	return name == "" || ok && p.Selector != nil && p.Selector.Matches(x.workspaces.Labels())
}
