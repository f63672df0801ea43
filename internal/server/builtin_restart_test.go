package server_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/store"
)

// TestBuiltInSchemasAreUpgraded shows that a server restores the schemas of its version in its
// exports, and that the bindings of all workspaces follow. It changes nothing else.
func TestBuiltInSchemasAreUpgraded(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	ctx := t.Context()
	root := at(t, s, cluster.Root, server.System())
	w := root.workspace("w")
	child := w.workspace("child")
	export := must(root.any.Resource(apiExports).Get(ctx, "tenancy.kcp.io", metav1.GetOptions{}))(t)
	resources, _, _ := unstructured.NestedSlice(export.Object, "spec", "resources")
	name := resources[2].(map[string]any)["schema"].(string)

	// The schema and the export are as an older server made them.
	old := must(root.any.Resource(apiSchemas).Get(ctx, name, metav1.GetOptions{}))(t)
	older := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "spec": old.Object["spec"]}}
	older.SetName("v0." + old.GetName()[len(name)-len("workspacetypes.tenancy.kcp.io"):])
	older.SetUID("older")
	must(s.Store().Commit(ctx, []store.Write{{Resource: exports.SchemaResource(), Cluster: cluster.Root, Object: older}}))(t)
	resources[2].(map[string]any)["schema"] = older.GetName()
	if err := unstructured.SetNestedSlice(export.Object, resources, "spec", "resources"); err != nil {
		t.Fatal(err)
	}
	stored := &apisv1alpha2.APIExport{}
	rev := must(s.Store().ReadInto(ctx, exports.Resource().Key(cluster.Root, "", "tenancy.kcp.io"), stored))(t)
	export.SetResourceVersion("")
	must(s.Store().Commit(ctx, []store.Write{{Resource: exports.Resource(), Cluster: cluster.Root, Object: export, Expect: rev}}))(t)
	binding := apisv1alpha2.DefaultBindingName(string(w.name), "root", "tenancy.kcp.io")
	has := func(schema string) func(*unstructured.Unstructured) bool {
		return func(o *unstructured.Unstructured) bool {
			all, _, _ := unstructured.NestedSlice(o.Object, "status", "boundResources")
			for _, r := range all {
				if r.(map[string]any)["schema"].(map[string]any)["name"] == schema {
					return conditionOf(o, "Ready") == "True"
				}
			}
			return false
		}
	}
	w.await(apiBindings, "", binding, has(older.GetName()))
	s.Close()

	s = start(t, dir)
	defer s.Close()
	w = at(t, s, w.name, server.System())
	w.await(apiBindings, "", binding, has(name))
	now := must(at(t, s, cluster.Root, server.System()).any.Resource(apiExports).Get(ctx, "tenancy.kcp.io", metav1.GetOptions{}))(t)
	if text(now, "status", "identityHash") != text(export, "status", "identityHash") || now.GetUID() != export.GetUID() {
		t.Errorf("the export is another: %v", now.Object)
	}
	if ws := must(w.any.Resource(workspaces).Get(ctx, "child", metav1.GetOptions{}))(t); clusterOf(ws) != child.name {
		t.Errorf("the workspace below is %v", ws.Object)
	}
}

// TestAnOlderWorkspaceGetsItsBindings shows that a workspace without bindings, as an older server
// made it, gets them, while one whose binding a user deleted does not.
func TestAnOlderWorkspaceGetsItsBindings(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("w")
	ctx := t.Context()
	binding := c.only().GetName()
	if err := c.any.Resource(apiBindings).Delete(ctx, binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(apiBindings, "", binding, gone)
	must(c.any.Resource(logicalClusters).Patch(ctx, "cluster", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))(t)
	if list := must(c.any.Resource(apiBindings).List(ctx, metav1.ListOptions{}))(t); len(list.Items) != 1 {
		t.Errorf("a deleted binding is back: %v", list.Items)
	}
	must(c.any.Resource(logicalClusters).Patch(ctx, "cluster", types.MergePatchType, []byte(`{"status":{"conditions":null}}`), metav1.PatchOptions{}, "status"))(t)
	c.await(apiBindings, "", binding, func(o *unstructured.Unstructured) bool { return o != nil && text(o, "status", "phase") == "Bound" })
	c.await(logicalClusters, "", "cluster", func(o *unstructured.Unstructured) bool { return conditionOf(o, "APIBindingsInitialized") == "True" })
	c.workspace("below")
}
