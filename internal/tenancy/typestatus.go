package tenancy

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// DeriveType sets the URLs of the views of a WorkspaceType's initializer and terminator in
// its status. It is a [store.WriteHook], so the status is always current.
func (w *Workspaces) DeriveType(u *unstructured.Unstructured) {
	c := cluster.Of(u)
	if c == "" {
		return // written by the server, with the status already set
	}
	stored, _, _ := unstructured.NestedMap(u.Object, "status")
	var status tenancyapi.WorkspaceTypeStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored, &status); err != nil {
		status = tenancyapi.WorkspaceTypeStatus{}
	}
	w.typeStatus(&status, tree.Type{Cluster: c, Name: u.GetName()})
	// Converting back does not fail.
	if derived, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status); err == nil {
		u.Object["status"] = derived
	}
}

// typeStatus sets the URLs and conditions in the status of a type.
func (w *Workspaces) typeStatus(status *tenancyapi.WorkspaceTypeStatus, of tree.Type) {
	status.VirtualWorkspaces = []tenancyapi.VirtualWorkspace{
		{Type: tenancyapi.Initializing, URL: w.BaseURL + "/services/initializingworkspaces/" + of.ID()},
		{Type: tenancyapi.Terminating, URL: w.BaseURL + "/services/terminatingworkspaces/" + of.ID()},
	}
	for _, t := range []conditions.Type{tenancyapi.VirtualWorkspaceURLsReady, conditions.Ready} {
		status.Conditions.Set(conditions.Condition{Type: t, Status: metav1.ConditionTrue})
	}
}

// UpdateTypeURLs sets the URLs in the status of a type by the current URL of the server.
func (w *Workspaces) UpdateTypeURLs(ctx context.Context, c cluster.Name, name string) error {
	t, rev, err := read[tenancyapi.WorkspaceType](ctx, w.Store, keys.Key{Resource: w.TypeResource, Cluster: c, Name: name})
	if err != nil || t == nil {
		return err
	}
	w.typeStatus(&t.Status, tree.Type{Cluster: c, Name: name})
	return w.commitType(ctx, c, t, rev)
}

// commitType writes a type.
func (w *Workspaces) commitType(ctx context.Context, c cluster.Name, t *tenancyapi.WorkspaceType, expect int64) error {
	u, err := values.Unstructured(t, tenancyapi.GroupVersion.WithKind("WorkspaceType"))
	if err != nil {
		return err
	}
	_, err = w.Store.Commit(ctx, []store.Write{{Resource: w.TypeResource, Cluster: c, Object: u, Expect: expect}})
	return err
}
