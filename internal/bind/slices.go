package bind

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
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

// like reports whether two slices have the same values. Since is none of them.
func (s *Slice) like(other *Slice) bool {
	now := *s
	now.Since = other.Since
	return now == *other
}

func sliceOf(s *apisv1alpha1.APIExportEndpointSlice) (*Slice, error) {
	return &Slice{Path: s.Spec.APIExport.Path, Name: s.Spec.APIExport.Name, Partition: s.Spec.Partition, Own: s.Name}, nil
}

// ViewPath returns the path of the virtual workspace of an export.
func ViewPath(e ExportName) string {
	return "/services/apiexport/" + string(e.Cluster) + "/" + e.Name
}

// ReconcileSlice brings the endpoints of an APIExportEndpointSlice up to date. It has the URL of
// the virtual workspace as long as somebody binds the export.
func (a *APIs) ReconcileSlice(ctx context.Context, c cluster.Name, name string) error {
	s := &apisv1alpha1.APIExportEndpointSlice{}
	rev, err := a.store.ReadInto(ctx, SliceResource().Key(c, "", name), s)
	if err != nil || rev == 0 || s.DeletionTimestamp != nil {
		return err
	}
	before := s.DeepCopy()
	a.endpoints(ctx, c, endpoints{of: s.Spec.APIExport, partition: s.Spec.Partition, status: &s.Status, path: ViewPath})
	if equality.Semantic.DeepEqual(before.Status, s.Status) {
		return nil
	}
	stored, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIExportEndpointSlice"))
	if err != nil {
		return err
	}
	_, err = a.store.Commit(ctx, []store.Write{{Resource: SliceResource(), Cluster: c, Object: stored, Expect: rev}})
	return err
}

// endpoints are what the status of a slice depends on.
type endpoints struct {
	of        apisv1alpha2.ExportReference
	partition string
	status    *apisv1alpha1.APIExportEndpointSliceStatus
	path      func(ExportName) string // of the virtual workspace
}

// endpoints sets the status of a slice.
func (a *APIs) endpoints(ctx context.Context, c cluster.Name, of endpoints) {
	valid := conditions.Condition{Type: apisv1alpha2.APIExportValid, Status: metav1.ConditionTrue}
	export, located := a.Locate(ctx, c, of.of.Path, of.of.Name)
	_, exists := a.Exports.Get(export.Cluster, "", export.Name)
	of.status.Endpoints = nil
	selects := a.partition(c, of.partition, of.status)
	switch {
	case !located || !exists:
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.APIExportNotFound
		valid.Message = "there is no APIExport " + of.of.Name + " at this path"
	case selects && a.Bindings.Bound(export):
		of.status.Endpoints = []apisv1alpha1.Endpoint{{URL: a.workspaces.BaseURL + of.path(export)}}
	}
	of.status.Conditions.Set(valid)
}

// partition sets what the status of a slice says about its Partition. It reports whether the
// Partition selects the shard of this server.
func (a *APIs) partition(c cluster.Name, name string, st *apisv1alpha1.APIExportEndpointSliceStatus) bool {
	valid := conditions.Condition{Type: apisv1alpha1.PartitionValid, Status: metav1.ConditionTrue}
	defer func() { st.Conditions.Set(valid) }()
	st.ShardSelector = ""
	if name == "" {
		return true
	}
	p, ok := a.Partitions.Get(c, "", name)
	if !ok || p.Selector == nil {
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha1.PartitionInvalidReference
		valid.Message = "there is no Partition " + name + " in this workspace"
		if ok {
			valid.Message = "the selector of the Partition " + name + " is invalid"
		}
		return false
	}
	st.ShardSelector = p.Selector.String()
	return p.Selector.Matches(a.workspaces.Labels())
}

// selects reports whether a Partition selects the shard of this server. No name selects all.
func (a *APIs) selects(c cluster.Name, name string) bool {
	p, ok := a.Partitions.Get(c, "", name)
	return name == "" || ok && p.Selector != nil && p.Selector.Matches(a.workspaces.Labels())
}
