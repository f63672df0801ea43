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

// A Slice is the decoded part of an APIExportEndpointSlice.
type Slice struct {
	// Path and Name are the reference to its export.
	Path, Name string
	// Partition is the name of its Partition, empty for none.
	Partition string
	// Own is its own name.
	Own string
}

func sliceOf(s *apisv1alpha1.APIExportEndpointSlice) (Slice, error) {
	return Slice{s.Spec.APIExport.Path, s.Spec.APIExport.Name, s.Spec.Partition, s.Name}, nil
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
	valid := conditions.Condition{Type: apisv1alpha2.APIExportValid, Status: metav1.ConditionTrue}
	ref := s.Spec.APIExport
	export, located := a.Locate(ctx, c, ref.Path, ref.Name)
	_, exists := a.Exports.Get(export.Cluster, "", export.Name)
	s.Status.Endpoints = nil
	selects := a.partition(c, s)
	switch {
	case !located || !exists:
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.APIExportNotFound
		valid.Message = "there is no APIExport " + ref.Name + " at this path"
	case selects && a.Bindings.Bound(export):
		s.Status.Endpoints = []apisv1alpha1.Endpoint{{URL: a.workspaces.BaseURL + ViewPath(export)}}
	}
	s.Status.Conditions.Set(valid)
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

// partition sets what the status of a slice says about its Partition. It reports whether the
// Partition selects the shard of this server.
func (a *APIs) partition(c cluster.Name, s *apisv1alpha1.APIExportEndpointSlice) bool {
	valid := conditions.Condition{Type: apisv1alpha1.PartitionValid, Status: metav1.ConditionTrue}
	defer func() { s.Status.Conditions.Set(valid) }()
	s.Status.ShardSelector = ""
	if s.Spec.Partition == "" {
		return true
	}
	p, ok := a.Partitions.Get(c, "", s.Spec.Partition)
	if !ok || p.Selector == nil {
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha1.PartitionInvalidReference
		valid.Message = "there is no Partition " + s.Spec.Partition + " in this workspace"
		if ok {
			valid.Message = "the selector of the Partition " + s.Spec.Partition + " is invalid"
		}
		return false
	}
	s.Status.ShardSelector = p.Selector.String()
	return p.Selector.Matches(a.workspaces.Labels())
}
