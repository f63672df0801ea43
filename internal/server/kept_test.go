package server_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/store"
)

// finalized sets the finalizers of an object to those of the system and the given ones.
func (c *tenant) finalized(r schema.GroupVersionResource, name string, finalizers ...string) {
	c.t.Helper()
	system := map[schema.GroupVersionResource]string{workspaces: corev1alpha1.LogicalClusterFinalizer, logicalClusters: corev1alpha1.DeletionFinalizer}
	all := must(json.Marshal(append(finalizers, system[r])))(c.t)
	patch := []byte(`{"metadata":{"finalizers":` + string(all) + `}}`)
	must(c.any.Resource(r).Patch(c.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(c.t)
}

// usable checks that a cluster contains a config map and accepts new ones.
func (c *tenant) usable(has, makes string) {
	c.t.Helper()
	must(c.kube.CoreV1().ConfigMaps("default").Get(c.t.Context(), has, metav1.GetOptions{}))(c.t)
	c.content(makes)
	if state, err := c.server.Store().State(c.t.Context(), c.name); state != store.Active || err != nil {
		c.t.Errorf("the fence is %q (%v)", state, err)
	}
}

func TestAForeignFinalizerOnAWorkspaceKeepsItsContent(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	alice := c.allow("alice")
	above := alice.workspace("above")
	w := above.workspace("w")
	below := w.workspace("below")
	w.content("m")
	below.content("m")
	above.finalized(workspaces, "w", hold)

	// Deletion of the Workspace.
	above.deleteWorkspace("w")
	isDeleting(t, above.says(workspaces, "w", "workspaces.tenancy.kcp.io w is kept by finalizer "+hold))
	l := must(w.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
	if l.GetDeletionTimestamp() != nil || text(l, "status", "phase") != "Ready" {
		t.Errorf("the LogicalCluster is being deleted: %v", l.Object)
	}
	w.usable("m", "late")
	w.workspace("late")

	// Deletion of a Workspace above it.
	alice.deleteWorkspace("above")
	c.says(workspaces, "above", "workspaces.tenancy.kcp.io w is kept by finalizer "+hold)
	w.usable("m", "later")
	below.usable("m", "late")

	above.finalized(workspaces, "w")
	c.ended("above", above.name, w.name, below.name)
}

func TestAForeignFinalizerOnALogicalClusterKeepsItsContent(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	alice := c.allow("alice")
	above := alice.workspace("above")
	w := above.workspace("w")
	w.content("m")
	w.become("Ready", map[string][]string{"terminators": {"root:web"}})
	w.finalized(logicalClusters, "cluster", "example.com/other", hold)
	alice.deleteWorkspace("above")

	kept := "logicalclusters.core.kcp.io cluster is kept by finalizers [example.com/other " + hold + "]"
	w.says(logicalClusters, "cluster", "terminator root:web has not finished", kept)
	c.says(workspaces, "above", "in workspace w, terminator root:web has not finished", kept)
	w.usable("m", "late")
	if err := finish(t.Context(), c.terminating("root:web", server.System()).clusters(string(w.name)), "terminators", "root:web"); err != nil {
		t.Fatal(err)
	}
	w.says(logicalClusters, "cluster", kept)
	isDeleting(t, w.await(logicalClusters, "", "cluster", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Deleting" }))
	w.usable("m", "later")
	w.finalized(logicalClusters, "cluster", hold)
	c.says(workspaces, "above", "in workspace w, logicalclusters.core.kcp.io cluster is kept by finalizer "+hold)
	w.usable("m", "last")
	w.finalized(logicalClusters, "cluster")
	c.ended("above", above.name, w.name)
}

func TestForeignFinalizersKeepAClusterThatIsRemoved(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	w.content("m")
	c.finalized(workspaces, "w", hold)
	w.finalized(logicalClusters, "cluster", hold)
	c.cannotRemove(w, "w", "workspaces.tenancy.kcp.io w is kept by finalizer "+hold)
	w.usable("m", "late")
	c.finalized(workspaces, "w")
	w.says(logicalClusters, "cluster", "logicalclusters.core.kcp.io cluster is kept by finalizer "+hold)
	w.usable("m", "later")

	// During the deletion no finalizer can be added.
	patch := []byte(`{"metadata":{"finalizers":["` + hold + `","example.com/more","` + corev1alpha1.DeletionFinalizer + `"]}}`)
	if _, err := w.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a finalizer is added to a LogicalCluster that is being deleted: %v", err)
	}
	w.finalized(logicalClusters, "cluster")
	c.ended("w", w.name)

	// A cluster without a Workspace.
	alone := newTenant(t)
	alone.finalized(logicalClusters, "cluster", hold)
	failed := make(chan error, 1)
	go func() { failed <- c.server.Remove(t.Context(), alone.name) }()
	alone.says(logicalClusters, "cluster", hold)
	alone.content("late")
	alone.finalized(logicalClusters, "cluster")
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	c.nothingLeft(alone.name)
}

func TestAForcedDeletionIgnoresForeignFinalizers(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	olga := at(t, c.server, c.name, operator("olga"))
	w := c.workspace("w")
	below := w.workspace("below")
	w.finalized(logicalClusters, "cluster", hold)
	below.finalized(logicalClusters, "cluster", hold)
	w.finalized(workspaces, "below", hold)
	c.finalized(workspaces, "w", hold)
	c.deleteWorkspace("w")
	c.says(workspaces, "w", hold)
	if err := olga.force("w", "ticket 43"); err != nil {
		t.Fatal(err)
	}
	c.ended("w", w.name, below.name)
}

// The cluster of a Workspace in deletion still becomes initialized.
func TestAKeptWorkspaceInitializes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := string(c.name) + ":web"
	w := c.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {id}})
	c.finalized(workspaces, "w", hold)
	c.deleteWorkspace("w")
	c.says(workspaces, "w", hold)
	if err := finish(t.Context(), c.initializing(id, server.System()).clusters(string(w.name)), "initializers", id); err != nil {
		t.Fatal(err)
	}
	w.in(logicalClusters, "cluster", "Ready")
	c.in(workspaces, "w", "Deleting")
	must(w.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}))(t)
	c.finalized(workspaces, "w")
	c.ended("w", w.name)
}

// operator returns a user who operates the server.
func operator(name string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated, auth.AdminGroup}}
}
