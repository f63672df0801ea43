package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

var shards = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "shards"}

// TestAWorkspaceWaitsForItsShard shows that a workspace whose selector matches no Shard is
// created without a cluster, and is placed when the Shard gets the label.
func TestAWorkspaceWaitsForItsShard(t *testing.T) {
	t.Parallel()
	c, root := newTenant(t), at(t, newTenant(t).server, cluster.Root, server.System())
	zone := string(c.name) // a label that no other test uses
	ws := workspace("far")
	ws.Object["spec"] = map[string]any{"location": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{zone: "x"}}}}
	made := c.create(workspaces, ws)
	if text(made, "status", "phase") != "Scheduling" || conditionOf(made, "WorkspaceScheduled") != "False Unschedulable" || text(made, "spec", "cluster") != "<nil>" {
		t.Fatalf("the new workspace is %v", made.Object)
	}
	must(root.any.Resource(shards).Patch(t.Context(), "root", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+zone+`":"x"}}}`), metav1.PatchOptions{}))(t)
	ready := c.await(workspaces, "", "far", func(o *unstructured.Unstructured) bool { return o != nil && text(o, "status", "phase") == "Ready" })
	if conditionOf(ready, "WorkspaceScheduled") != "True" || clusterOf(ready) == "" {
		t.Errorf("the placed workspace is %v", ready.Object)
	}
	for selector, valid := range map[string]bool{`{"matchLabels":{"a b":"c"}}`: false, `{"matchExpressions":[{"key":"a","operator":"Near"}]}`: false, `{"matchLabels":{"name":"root"}}`: true} {
		body := decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {generateName: x}, spec: {location: {selector: %s}}}`, selector)
		if _, err := c.any.Resource(workspaces).Create(t.Context(), body, metav1.CreateOptions{}); (err == nil) != valid {
			t.Errorf("selector %s: %v", selector, err)
		}
	}
	if err := c.any.Resource(workspaces).Delete(t.Context(), "far", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestAnUnscheduledWorkspaceIsDeleted shows that nothing keeps a workspace without a cluster.
func TestAnUnscheduledWorkspaceIsDeleted(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.create(workspaces, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: far}, spec: {location: {selector: {matchLabels: {name: none}}}}}`))
	c.deleteWorkspace("far")
	if _, err := c.any.Resource(workspaces).Get(t.Context(), "far", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

// TestShardsBelongToTheServer shows that tenants can neither read nor write Shards, and that
// not even system:masters can make one, delete one or change its address.
func TestShardsBelongToTheServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.allow("mallory")
	forged := decoded(`{apiVersion: core.kcp.io/v1alpha1, kind: Shard, metadata: {name: forged, labels: {name: forged}}, spec: {baseURL: "https://evil.example.com"}}`)
	inRoot := at(t, c.server, cluster.Root, as("mallory"))
	for name, err := range map[string]error{
		"read":         second(inRoot.any.Resource(shards).Get(t.Context(), "root", metav1.GetOptions{})),
		"create":       second(inRoot.any.Resource(shards).Create(t.Context(), forged, metav1.CreateOptions{})),
		"unschedule":   second(inRoot.any.Resource(shards).Patch(t.Context(), "root", types.MergePatchType, []byte(`{"metadata":{"annotations":{"experimental.core.kcp.io/unschedulable":""}}}`), metav1.PatchOptions{})),
		"write status": second(inRoot.any.Resource(shards).Patch(t.Context(), "root", types.MergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, "status")),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a tenant may %s: %v", name, err)
		}
	}
	if _, err := at(t, c.server, c.name, as("mallory")).any.Resource(shards).Create(t.Context(), forged, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Shard in a workspace: %v", err)
	}
	root := at(t, c.server, cluster.Root, server.System())
	s := must(root.any.Resource(shards).Get(t.Context(), "root", metav1.GetOptions{}))(t)
	if s.GetLabels()["name"] != "root" || !strings.HasPrefix(text(s, "spec", "baseURL"), "https://127.0.0.1") || text(s, "spec", "externalURL") == "" || text(s, "spec", "virtualWorkspaceURL") == "" {
		t.Errorf("the Shard is %v", s.Object)
	}
	for name, err := range map[string]error{
		"create":  second(root.any.Resource(shards).Create(t.Context(), forged, metav1.CreateOptions{})),
		"delete":  root.any.Resource(shards).Delete(t.Context(), "root", metav1.DeleteOptions{}),
		"clear":   root.any.Resource(shards).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		"rename":  second(root.any.Resource(shards).Patch(t.Context(), "root", types.MergePatchType, []byte(`{"metadata":{"labels":{"name":"x"}}}`), metav1.PatchOptions{})),
		"address": second(root.any.Resource(shards).Patch(t.Context(), "root", types.MergePatchType, []byte(`{"spec":{"externalURL":"https://evil.example.com"}}`), metav1.PatchOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("system:masters can %s a Shard: %v", name, err)
		}
	}
}
