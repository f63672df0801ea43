package bind

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// A Slice is the decoded part of an APIExportEndpointSlice: the reference to its export.
type Slice struct{ Path, Name string }

func sliceOf(s *apisv1alpha1.APIExportEndpointSlice) (Slice, error) {
	return Slice{s.Spec.APIExport.Path, s.Spec.APIExport.Name}, nil
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
	switch {
	case !located || !exists:
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.APIExportNotFound
		valid.Message = "there is no APIExport " + ref.Name + " at this path"
	case a.Bindings.Bound(export):
		s.Status.Endpoints = []apisv1alpha1.Endpoint{{URL: a.workspaces.BaseURL + ViewPath(export)}}
	}
	if !s.Status.Conditions.Set(valid) && sameEndpoints(s.Status.Endpoints, before.Status.Endpoints) {
		return nil
	}
	stored, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIExportEndpointSlice"))
	if err != nil {
		return err
	}
	_, err = a.store.Commit(ctx, []store.Write{{Resource: SliceResource(), Cluster: c, Object: stored, Expect: rev}})
	return err
}

func sameEndpoints(a, b []apisv1alpha1.Endpoint) bool {
	return len(a) == len(b) && (len(a) == 0 || a[0].URL == b[0].URL)
}
