package tenancy

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// DeriveType has a WorkspaceType that is about to be stored say where the workspaces
// are found that wait for its initializer or terminator. It is a [store.WriteHook]:
// the status is there when the creation is answered, and is never anything else.
func (w *Workspaces) DeriveType(u *unstructured.Unstructured) {
	c := cluster.Of(u)
	if c == "" {
		return // written by the server itself, which has done it
	}
	stored, _, _ := unstructured.NestedMap(u.Object, "status")
	var status tenancyapi.WorkspaceTypeStatus
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored, &status); err != nil {
		status = tenancyapi.WorkspaceTypeStatus{}
	}
	w.typeStatus(&status, Type{Cluster: c, Name: u.GetName()})
	// What was read can be written.
	if derived, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status); err == nil {
		u.Object["status"] = derived
	}
}

// typeStatus makes the status of a type what it has to be.
func (w *Workspaces) typeStatus(status *tenancyapi.WorkspaceTypeStatus, of Type) {
	status.VirtualWorkspaces = []tenancyapi.VirtualWorkspace{
		{Type: tenancyapi.Initializing, URL: w.BaseURL + "/services/initializingworkspaces/" + of.ID()},
		{Type: tenancyapi.Terminating, URL: w.BaseURL + "/services/terminatingworkspaces/" + of.ID()},
	}
	for _, t := range []conditions.Type{tenancyapi.VirtualWorkspaceURLsReady, conditions.Ready} {
		status.Conditions.Set(conditions.Condition{Type: t, Status: metav1.ConditionTrue})
	}
}

// ReaddressType has a type say where the server is now. It does nothing where it says
// so already.
func (w *Workspaces) ReaddressType(ctx context.Context, c cluster.Name, name string) error {
	t, rev, err := read[tenancyapi.WorkspaceType](ctx, w.Store, store.Key{Resource: w.TypeResource, Cluster: c, Name: name})
	if err != nil || t == nil {
		return err
	}
	w.typeStatus(&t.Status, Type{Cluster: c, Name: name})
	return w.commitType(ctx, c, t, rev)
}

// commitType writes a type.
func (w *Workspaces) commitType(ctx context.Context, c cluster.Name, t *tenancyapi.WorkspaceType, expect int64) error {
	u, err := toUnstructured(t, tenancyapi.GroupVersion.WithKind("WorkspaceType"))
	if err != nil {
		return err
	}
	_, err = w.Store.Commit(ctx, []store.Write{{Resource: w.TypeResource, Cluster: c, Object: u, Expect: expect}})
	return err
}
