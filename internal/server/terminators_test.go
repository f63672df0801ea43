package server_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// in waits until an object is in a phase.
func (c *tenant) in(r schema.GroupVersionResource, name, phase string) *unstructured.Unstructured {
	c.t.Helper()
	return c.await(r, "", name, func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == phase })
}

// unmodified returns the next event that is not Modified.
func unmodified(w watch.Interface) watch.Event {
	for e := range w.ResultChan() {
		if e.Type != watch.Modified {
			return e
		}
	}
	return watch.Event{}
}

func TestTerminatorsHaveTheirTimeBeforeAWorkspaceIsEmptied(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := string(c.name) + ":web"
	c.mayVerb("tom", "terminate", "web")
	alice := c.allow("alice")
	w := alice.workspace("w")
	w.content("m")
	w.become("Ready", map[string][]string{"terminators": {"root:other", id}})
	l := must(w.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
	if !slices.Contains(l.GetFinalizers(), corev1alpha1.TerminatorsFinalizer) {
		t.Errorf("finalizers %v", l.GetFinalizers())
	}
	tom := c.terminating(id, as("tom"))
	if list := must(tom.clusters("*").List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) > 0 {
		t.Errorf("in the view before it is deleted: %v", names(list))
	}
	empty := must(tom.clusters("*").List(t.Context(), metav1.ListOptions{}))(t)
	watching := must(tom.clusters("*").Watch(t.Context(), metav1.ListOptions{ResourceVersion: empty.GetResourceVersion()}))(t)
	defer watching.Stop()
	alice.deleteWorkspace("w")

	// Requests of users and of the terminator succeed as before.
	ws := c.says(workspaces, "w", id, "root:other", "have not finished")
	if text(ws, "status", "phase") != "Terminating" || ws.GetLabels()[corev1alpha1.PhaseLabel] != "Terminating" {
		t.Errorf("the workspace is %s", text(ws, "status", "phase"))
	}
	w.in(logicalClusters, "cluster", "Terminating")
	for _, kube := range []*tenant{at(t, c.server, w.name, as("alice"))} {
		kube.content("late")
		if err := kube.kube.CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "this namespace may not be deleted") {
			t.Errorf("default is deleted: %v", err)
		}
	}
	maps := tom.kube(w.name).CoreV1().ConfigMaps("default")
	must(maps.Get(t.Context(), "m", metav1.GetOptions{}))(t)
	must(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last"}}, metav1.CreateOptions{}))(t)
	if e := <-watching.ResultChan(); e.Type != watch.Added || cluster.Of(e.Object.(*unstructured.Unstructured)) != w.name {
		t.Errorf("the view has %v", e)
	}

	// Each terminator can remove only its own name.
	clusters := tom.clusters(string(w.name))
	_, err := clusters.Patch(t.Context(), "cluster", types.MergePatchType, []byte(`{"status":{"terminators":[]}}`), metav1.PatchOptions{}, "status")
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `only removing the "`+id+`" terminator is supported`) {
		t.Errorf("those of others: %v", err)
	}
	if err := finish(t.Context(), clusters, "terminators", id); err != nil {
		t.Fatal(err)
	}
	if e := unmodified(watching); e.Type != watch.Deleted {
		t.Errorf("the view has %v", e)
	}
	c.says(workspaces, "w", "terminator root:other has not finished")
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("after it has finished: %v", err)
	}
	system := &user.DefaultInfo{Name: "system:kcp", Groups: []string{user.SystemPrivilegedGroup}}
	if err := finish(t.Context(), c.terminating("root:other", system).clusters(string(w.name)), "terminators", "root:other"); err != nil {
		t.Fatal(err)
	}
	c.ended("w", w.name)
}

func TestTerminatorsBelowKeepAWorkspace(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.allow("alice")
	alice := at(t, c.server, c.name, as("alice"))
	a := alice.workspace("a")
	b := a.workspace("b")
	d := b.workspace("d")
	d.become("Ready", map[string][]string{"terminators": {"root:web"}})
	alice.deleteWorkspace("a")

	c.says(workspaces, "a", "in workspace b, in workspace d, terminator root:web has not finished")
	d.in(logicalClusters, "cluster", "Terminating")
	a.in(workspaces, "b", "Deleting")
	system := server.System()
	if err := finish(t.Context(), c.terminating("root:web", system).clusters(string(d.name)), "terminators", "root:web"); err != nil {
		t.Fatal(err)
	}
	c.ended("a", a.name, b.name, d.name)
}

func TestAWorkspaceIsDeletedWhileItInitializes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := string(c.name) + ":web"
	c.mayVerb("ina", "initialize", "web")
	w := c.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {id}})
	ina := c.initializing(id, as("ina"))
	list := must(ina.clusters("*").List(t.Context(), metav1.ListOptions{}))(t)
	if len(list.Items) != 1 {
		t.Fatalf("in the view are %v", names(list))
	}
	watching := must(ina.clusters("*").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	defer watching.Stop()
	c.deleteWorkspace("w")
	if e := unmodified(watching); e.Type != watch.Deleted {
		t.Errorf("the view has %v", e)
	}
	c.ended("w", w.name)
}

const forceDelete = corev1alpha1.ForceDeleteAnnotation

// force requests the forced deletion of a workspace.
func (c *tenant) force(name, why string) error {
	patch := []byte(`{"metadata":{"annotations":{"` + forceDelete + `":"` + why + `"}}}`)
	_, err := c.any.Resource(workspaces).Patch(c.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func TestOperatorsForceADeletion(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.allow("alice")
	alice := at(t, c.server, c.name, as("alice"))
	olga := at(t, c.server, c.name, &user.DefaultInfo{Name: "olga", Groups: []string{user.AllAuthenticated, "system:kcp:admin"}})
	a, other := alice.workspace("a"), alice.workspace("other")
	b := a.workspace("b")
	d := b.workspace("d")
	for _, w := range []*tenant{a, b, d, other} {
		w.content("m", hold)
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{hold}}}
		must(w.kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t)
	}
	d.become("Ready", map[string][]string{"terminators": {"root:web"}})
	patch := []byte(`{"metadata":{"finalizers":["` + hold + `","` + corev1alpha1.LogicalClusterFinalizer + `"]}}`)
	for in, name := range map[*tenant]string{alice: "a", a: "b"} {
		must(in.any.Resource(workspaces).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	}
	if err := olga.force("a", "too early"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "delete it first") {
		t.Errorf("before it is deleted: %v", err)
	}
	alice.deleteWorkspace("a")
	alice.deleteWorkspace("other")
	c.says(workspaces, "a", "workspaces.tenancy.kcp.io a is kept by finalizer "+hold)
	if err := alice.force("a", "mine"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "operators") {
		t.Errorf("by its owner: %v", err)
	}
	if err := olga.force("a", "ticket 42"); err != nil {
		t.Fatal(err)
	}
	c.ended("a", a.name, b.name, d.name)
	// The other workspace still waits.
	c.says(workspaces, "other", hold)
	other.letGo("m")
	must(other.kube.CoreV1().Namespaces().Finalize(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.UpdateOptions{}))(t)
	c.await(workspaces, "", "other", gone)
}
