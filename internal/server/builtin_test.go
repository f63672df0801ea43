package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// only returns the APIBinding of a cluster to tenancy.kcp.io. It fails unless the cluster has
// that and the one to topology.kcp.io, and no others.
func (c *tenant) only() *unstructured.Unstructured {
	c.t.Helper()
	list := must(c.any.Resource(apiBindings).List(c.t.Context(), metav1.ListOptions{}))(c.t)
	var of []string
	for i := range list.Items { // ordered by name
		of = append(of, text(&list.Items[i], "spec", "reference", "export", "name")+" "+conditionOf(&list.Items[i], "Ready"))
	}
	if got := strings.Join(of, ", "); got != "tenancy.kcp.io True, topology.kcp.io True" {
		c.t.Fatalf("the bindings are %s", got)
	}
	return &list.Items[0]
}

// TestPartitionsNeedTheirBinding shows that a workspace has Partitions by its binding to
// topology.kcp.io, which users may delete and create again.
func TestPartitionsNeedTheirBinding(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("w")
	name := apisv1alpha2.DefaultBindingName(string(c.name), "root", "topology.kcp.io")
	c.create(shardPartitions, partition("p", "{}"))
	if err := c.any.Resource(apiBindings).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(apiBindings, "", name, gone)
	if _, err := c.any.Resource(shardPartitions).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without the binding: %v", err)
	}
	c.allow("ann").create(apiBindings, bindingTo("again", "root", "topology.kcp.io"))
	if list := must(c.any.Resource(shardPartitions).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) > 0 {
		t.Errorf("the deletion of the binding has left %v", list.Items)
	}
}

// TestCachedResourcesAreEverywhere shows that every workspace has the kinds of cache.kcp.io, with
// and without a binding to their export, and that migration.kcp.io has no kinds.
func TestCachedResourcesAreEverywhere(t *testing.T) {
	t.Parallel()
	c := publisher(t)
	for _, export := range []string{"cache.kcp.io", "migration.kcp.io"} {
		if _, err := c.allow(export).any.Resource(apiBindings).Create(t.Context(), bindingTo("x", "root", export), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a user may bind %s: %v", export, err)
		}
		b := c.create(apiBindings, bindingTo("own", "root", export))
		if conditionOf(b, "Ready") != "True" {
			t.Errorf("the binding to %s is %v", export, b.Object["status"])
		}
		if err := c.any.Resource(apiBindings).Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.await(apiBindings, "", "own", gone)
		must(c.any.Resource(cached).Get(t.Context(), "flavors", metav1.GetOptions{}))(t)
	}
}

// TestANewWorkspaceBindsItsAPIs shows that a new workspace has a complete binding to
// tenancy.kcp.io, that the API works at once, and that it ends with the binding.
func TestANewWorkspaceBindsItsAPIs(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("w")
	b := c.only()
	if want := apisv1alpha2.DefaultBindingName(string(c.name), "root", "tenancy.kcp.io"); b.GetName() != want || conditionOf(b, "Ready") != "True" || text(b, "status", "phase") != "Bound" {
		t.Errorf("the binding is %v, not named %s", b.Object, want)
	}
	if !slices.Contains(b.GetFinalizers(), "apis.kcp.io/apibinding-finalizer") || b.GetLabels()["internal.apis.kcp.io/export"] == "" {
		t.Errorf("metadata %v", b.Object["metadata"])
	}
	root := at(t, c.server, cluster.Root, server.System())
	export := must(root.any.Resource(apiExports).Get(t.Context(), "tenancy.kcp.io", metav1.GetOptions{}))(t)
	bound, _, _ := unstructured.NestedSlice(b.Object, "status", "boundResources")
	for _, r := range bound {
		got := unstructured.Unstructured{Object: r.(map[string]any)}
		schema := must(root.any.Resource(apiSchemas).Get(t.Context(), text(&got, "schema", "name"), metav1.GetOptions{}))(t)
		if text(&got, "schema", "UID") != string(schema.GetUID()) || text(&got, "schema", "identityHash") != text(export, "status", "identityHash") {
			t.Errorf("bound %v", r)
		}
	}
	if len(bound) != 3 {
		t.Errorf("%d bound resources", len(bound))
	}
	child := c.workspace("child")
	view := viewOf(t, root, "tenancy.kcp.io")
	seen := must(view.Resource(workspaces).List(t.Context(), metav1.ListOptions{}))(t)
	if !slices.ContainsFunc(seen.Items, func(o unstructured.Unstructured) bool { return clusterOf(&o) == child.name }) {
		t.Error("the view of the built-in export lacks the workspace")
	}
	if err := c.any.Resource(apiBindings).Delete(t.Context(), b.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(apiBindings, "", b.GetName(), gone)
	if _, err := c.any.Resource(workspaces).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("workspaces after the deletion of the binding: %v", err)
	}
	if _, err := child.kube.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
		t.Error("a workspace outlived the binding of its API")
	}
}

// viewOf returns a client of the view of an export, for all clusters.
func viewOf(t *testing.T, c *tenant, export string) dynamic.Interface {
	t.Helper()
	config := c.config()
	config.Host = "http://kcp/services/apiexport/" + string(c.name) + "/" + export + "/clusters/*"
	return must(dynamic.NewForConfig(config))(t)
}

// TestTheClusterOfTheShard shows what system:shard has for system:masters, and that others see
// nothing of it.
func TestTheClusterOfTheShard(t *testing.T) {
	t.Parallel()
	s := newTenant(t).server
	shard := at(t, s, cluster.Shard, server.System())
	var bound []string
	for _, b := range must(shard.any.Resource(apiBindings).List(t.Context(), metav1.ListOptions{}))(t).Items {
		bound = append(bound, text(&b, "spec", "reference", "export", "name")+" "+conditionOf(&b, "Ready"))
	}
	slices.Sort(bound)
	if want := []string{"cache.kcp.io True", "shards.core.kcp.io True", "tenancy.kcp.io True", "topology.kcp.io True"}; !slices.Equal(bound, want) {
		t.Errorf("system:shard binds %v, not %v", bound, want)
	}
	if err := shard.any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("system:masters may delete the cluster of the shard: %v", err)
	}
	admin := &user.DefaultInfo{Name: "kcp-admin", Groups: []string{"system:kcp:admin", user.AllAuthenticated}}
	if _, err := at(t, s, cluster.Shard, admin).any.Resource(apiBindings).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator reads the cluster of the shard: %v", err)
	}
}

// TestAnOperatorLimitsWorkspaces shows that RBAC in the root workspace limits what members of all
// workspaces may do with the kinds of tenancy.kcp.io.
func TestAnOperatorLimitsWorkspaces(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	t.Cleanup(func() { s.Close() })
	root := at(t, s, cluster.Root, server.System())
	w := root.workspace("w")
	w.allow("pat")
	pat := at(t, s, w.name, as("pat"))
	pat.create(workspaces, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: allowed}}`))
	role := must(root.kube.RbacV1().ClusterRoles().Get(t.Context(), "system:kcp:apiexport:tenancy:maximal-permission-policy", metav1.GetOptions{}))(t)
	role.Rules[0].Verbs = []string{"get", "list", "watch"}
	must(root.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}))(t)
	eventually(t, "no more workspaces can be created", func() bool {
		_, err := pat.any.Resource(workspaces).Create(t.Context(), decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {generateName: refused-}}`), metav1.CreateOptions{})
		return apierrors.IsForbidden(err)
	})
	must(pat.any.Resource(workspaces).Get(t.Context(), "allowed", metav1.GetOptions{}))(t)
	admin := at(t, s, w.name, &user.DefaultInfo{Name: "kcp-admin", Groups: []string{"system:kcp:admin", user.AllAuthenticated}})
	admin.create(workspaces, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: of-the-admin}}`))
}

// TestBuiltInExportsBelongToTheServer shows that nobody can change or delete the built-in
// exports, their schemas or the bindings of root, and that tenants cannot have kinds of these
// names.
func TestBuiltInExportsBelongToTheServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.allow("mallory")
	root, mallory := at(t, c.server, cluster.Root, server.System()), at(t, c.server, cluster.Root, as("mallory"))
	ctx := t.Context()
	export := must(root.any.Resource(apiExports).Get(ctx, "tenancy.kcp.io", metav1.GetOptions{}))(t)
	schemas, _, _ := unstructured.NestedSlice(export.Object, "spec", "resources")
	schema := schemas[0].(map[string]any)["schema"].(string)
	binding := apisv1alpha2.DefaultBindingName("root", "root", "tenancy.kcp.io")
	for who, u := range map[string]*tenant{"system:masters": root, "a tenant": mallory} {
		for name, err := range map[string]error{
			"delete the export":    u.any.Resource(apiExports).Delete(ctx, "tenancy.kcp.io", metav1.DeleteOptions{}),
			"empty the export":     second(u.any.Resource(apiExports).Patch(ctx, "tenancy.kcp.io", types.MergePatchType, []byte(`{"spec":{"resources":null}}`), metav1.PatchOptions{})),
			"change the identity":  second(u.any.Resource(apiExports).Patch(ctx, "tenancy.kcp.io", types.MergePatchType, []byte(`{"spec":{"identity":{"secretRef":{"namespace":"default","name":"x"}}}}`), metav1.PatchOptions{})),
			"delete a schema":      u.any.Resource(apiSchemas).Delete(ctx, schema, metav1.DeleteOptions{}),
			"unbind root":          u.any.Resource(apiBindings).Delete(ctx, binding, metav1.DeleteOptions{}),
			"unbind root entirely": u.any.Resource(apiBindings).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s may %s: %v", who, name, err)
			}
		}
	}
	forged := must(root.any.Resource(apiSchemas).Get(ctx, schema, metav1.GetOptions{}))(t)
	if _, err := c.any.Resource(apiSchemas).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": map[string]any{"name": schema}, "spec": forged.Object["spec"],
	}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is a kind of the server") {
		t.Errorf("a schema of a kind of the server: %v", err)
	}
	if _, err := at(t, c.server, c.name, as("mallory")).any.Resource(apiBindings).Create(ctx, bindingTo("shards", "root", "shards.core.kcp.io"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant may bind Shards: %v", err)
	}
}

// exportFor lets a user bind the export of widgets of a cluster.
func (c *tenant) exportFor(name string) {
	c.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bind"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"bind"}, APIGroups: []string{"apis.kcp.io"}, Resources: []string{"apiexports"}}}}
	must(c.kube.RbacV1().ClusterRoles().Create(c.t.Context(), role, metav1.CreateOptions{}))(c.t)
	must(c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bind"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "bind"},
	}, metav1.CreateOptions{}))(c.t)
}

func typeBinding(name, lifecycle string, provider cluster.Name) *unstructured.Unstructured {
	return decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: %s},
spec: {extend: {with: [{name: universal, path: root}]}, defaultAPIBindingLifecycle: %s, defaultAPIBindings: [{export: widgets, path: "%s"}]}}`, name, lifecycle, provider)
}

// TestDefaultBindingsOfATypeNeedBind shows that a type can give no API to its workspaces that
// its author may not bind, and that later changes of others keep what it has.
func TestDefaultBindingsOfATypeNeedBind(t *testing.T) {
	t.Parallel()
	provider, owner := exporter(t), newTenant(t)
	ada, ben := owner.allow("ada"), owner.allow("ben")
	ctx := t.Context()
	for name, typ := range map[string]*unstructured.Unstructured{"hidden": typeBinding("shop", "Maintain", provider.name), "missing": typeBinding("shop", "Maintain", "nowhere")} {
		_, err := ada.any.Resource(workspaceTypes).Create(ctx, typ, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no permission to bind to export ") {
			t.Errorf("a type with a %s export: %v", name, err)
		}
	}
	must(ada.any.Resource(workspaceTypes).Create(ctx, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: plain}}`), metav1.CreateOptions{}))(t)
	add := []byte(`{"spec":{"defaultAPIBindings":[{"export":"widgets","path":"` + string(provider.name) + `"}]}}`)
	if _, err := ada.any.Resource(workspaceTypes).Patch(ctx, "plain", types.MergePatchType, add, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a binding is added later: %v", err)
	}
	provider.exportFor("ada")
	must(ada.any.Resource(workspaceTypes).Create(ctx, typeBinding("shop", "InitializeOnly", provider.name), metav1.CreateOptions{}))(t)
	must(ben.any.Resource(workspaceTypes).Patch(ctx, "shop", types.MergePatchType, []byte(`{"spec":{"additionalWorkspaceLabels":{"a":"b"}}}`), metav1.PatchOptions{}))(t)
	// The user of the type needs no right to bind.
	ws := must(ben.any.Resource(workspaces).Create(ctx, of("w", "", "shop"), metav1.CreateOptions{}))(t)
	if text(ws, "status", "phase") != "Ready" {
		t.Errorf("the new workspace is %v", ws.Object["status"])
	}
	in := owner.inside(ws)
	in.create(sharedWidgets, newWidget("w"))
	lc := must(in.any.Resource(logicalClusters).Get(ctx, "cluster", metav1.GetOptions{}))(t)
	if conditionOf(lc, "APIBindingsInitialized") != "True" {
		t.Errorf("conditions %v", lc.Object["status"])
	}
}

// TestDefaultBindingsWaitForTheirExport shows that a workspace is Initializing while an export
// of its type is missing, and says so.
func TestDefaultBindingsWaitForTheirExport(t *testing.T) {
	t.Parallel()
	provider, owner := newTenant(t), newTenant(t)
	provider.create(apiSchemas, widgetSchema("v1", "color"))
	owner.create(workspaceTypes, typeBinding("shop", "InitializeOnly", provider.name))
	ws := owner.create(workspaces, of("w", "", "shop"))
	if text(ws, "status", "phase") != "Initializing" || text(ws, "status", "initializers") != "[system:apibindings]" {
		t.Fatalf("the new workspace is %v", ws.Object["status"])
	}
	in := owner.inside(ws)
	in.await(logicalClusters, "", "cluster", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "APIBindingsInitialized") == "False APIBindingErrors"
	})
	provider.create(apiExports, widgetExport("widgets", "v1"))
	owner.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
	in.create(sharedWidgets, newWidget("w"))
	again := owner.create(workspaces, of("again", "", "shop"))
	if text(again, "status", "phase") != "Ready" {
		t.Errorf("a workspace after the export is %v", again.Object["status"])
	}
}

// TestDefaultBindingsAreMaintained shows what the two life cycles do with existing workspaces: a
// type with Maintain makes a deleted binding again and adds new ones, the other does neither.
func TestDefaultBindingsAreMaintained(t *testing.T) {
	t.Parallel()
	provider, owner := exporter(t), newTenant(t)
	owner.create(workspaceTypes, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: kept}, spec: {defaultAPIBindingLifecycle: Maintain, extend: {with: [{name: universal, path: root}]}}}`))
	owner.create(workspaceTypes, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: once}, spec: {extend: {with: [{name: universal, path: root}]}}}`))
	kept, once := owner.inside(owner.create(workspaces, of("kept", "", "kept"))), owner.inside(owner.create(workspaces, of("once", "", "once")))
	for _, name := range []string{"once", "kept"} {
		must(owner.any.Resource(workspaceTypes).Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"defaultAPIBindings":[{"export":"widgets","path":"`+string(provider.name)+`"}]}}`), metav1.PatchOptions{}))(t)
	}
	binding := apisv1alpha2.DefaultBindingName(string(kept.name), string(provider.name), "widgets")
	bound := func(o *unstructured.Unstructured) bool { return o != nil && text(o, "status", "phase") == "Bound" }
	first := kept.await(apiBindings, "", binding, bound)
	if err := kept.any.Resource(apiBindings).Delete(t.Context(), binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kept.await(apiBindings, "", binding, func(o *unstructured.Unstructured) bool { return bound(o) && o.GetUID() != first.GetUID() })
	kept.await(logicalClusters, "", "cluster", func(o *unstructured.Unstructured) bool { return conditionOf(o, "APIBindingsReconciled") == "True" })
	once.only()
}

// TestResourcesByIdentity shows lists and watches of an exported resource in all clusters, by
// the identity in the URL, and that only system:masters get them.
func TestResourcesByIdentity(t *testing.T) {
	t.Parallel()
	provider, one, two, other := exporter(t), newTenant(t), newTenant(t), exporter(t)
	for _, c := range []*tenant{one, two} {
		c.create(apiBindings, bindingTo("widgets", provider.name, "widgets"))
		c.create(sharedWidgets, newWidget("w"))
	}
	stranger := newTenant(t)
	stranger.create(apiBindings, bindingTo("widgets", other.name, "widgets"))
	stranger.create(sharedWidgets, newWidget("w"))
	ctx := t.Context()
	identity := text(must(provider.any.Resource(apiExports).Get(ctx, "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	all, r := at(t, provider.server, cluster.All, server.System()), sharedWidgets
	r.Resource += ":" + identity
	var got []string
	for _, o := range must(all.any.Resource(r).List(ctx, metav1.ListOptions{}))(t).Items {
		got = append(got, o.GetAnnotations()["kcp.io/cluster"])
	}
	slices.Sort(got)
	want := []string{string(one.name), string(two.name)}
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("widgets of the identity in %v, not %v", got, want)
	}
	w := must(all.any.Resource(r).Namespace("default").Watch(ctx, metav1.ListOptions{}))(t)
	defer w.Stop()
	seen := map[string]bool{}
	for !seen[string(one.name)] || !seen[string(two.name)] {
		seen[next(t, w).Object.(*unstructured.Unstructured).GetAnnotations()["kcp.io/cluster"]] = true
	}
	if seen[string(stranger.name)] {
		t.Error("the watch has objects of another identity")
	}
	must(one.any.Resource(r).Namespace("default").Get(ctx, "w", metav1.GetOptions{}))(t)
	if _, err := stranger.any.Resource(r).Namespace("default").Get(ctx, "w", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object of another identity in one cluster: %v", err)
	}
	configMaps, wrong, empty := core("configmaps"), sharedWidgets, sharedWidgets
	configMaps.Resource, wrong.Resource, empty.Resource = "configmaps:"+identity, "widgets:x", "widgets:"
	if _, err := all.any.Resource(configMaps).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("config maps with an identity: %v", err)
	}
	if _, err := all.any.Resource(wrong).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an identity that is none: %v", err)
	}
	if _, err := all.any.Resource(sharedWidgets).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no identity: %v", err)
	}
	if _, err := all.any.Resource(empty).List(ctx, metav1.ListOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("an empty identity: %v", err)
	}
	if err := all.any.Resource(r).Namespace("default").Delete(ctx, "w", metav1.DeleteOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a write in all clusters: %v", err)
	}
	one.allow("mallory")
	if _, err := at(t, one.server, cluster.All, as("mallory")).any.Resource(r).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant lists all clusters by identity: %v", err)
	}
}

// TestDefaultBindingsAreOfTheCheckedExport shows that a type gives its workspaces the export that
// its author was allowed to bind, and not one that another provider puts at the same path later.
func TestDefaultBindingsAreOfTheCheckedExport(t *testing.T) {
	t.Parallel()
	home, owner := newTenant(t), newTenant(t)
	ada := owner.allow("ada")
	provide := func() *tenant {
		p := home.inside(home.create(workspaces, workspace("tools")))
		p.create(apiSchemas, widgetSchema("v1", "color"))
		p.create(apiExports, widgetExport("widgets", "v1"))
		return p
	}
	entry := `{"export":"widgets","path":"` + string(home.name) + `:tools"}`
	patch := func(patch string) *unstructured.Unstructured {
		return must(ada.any.Resource(workspaceTypes).Patch(t.Context(), "shop", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	}
	first := provide()
	first.exportFor("ada")
	must(ada.any.Resource(workspaceTypes).Create(t.Context(), typeBinding("shop", "InitializeOnly", home.name+":tools"), metav1.CreateOptions{}))(t)
	if ws := owner.create(workspaces, of("before", "", "shop")); text(ws, "status", "phase") != "Ready" {
		t.Fatalf("the new workspace is %v", ws.Object["status"])
	}
	if err := home.any.Resource(workspaces).Delete(t.Context(), "tools", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.await(workspaces, "", "tools", gone)
	second := provide()
	forged := patch(`{"metadata":{"annotations":{"internal.tenancy.kcp.io/checked-exports":"{}"}},"spec":{"additionalWorkspaceLabels":{"a":"b"}}}`)
	if got := forged.GetAnnotations()["internal.tenancy.kcp.io/checked-exports"]; !strings.Contains(got, string(first.name)) {
		t.Errorf("the checked exports can be changed: %s", got)
	}
	in := owner.inside(owner.create(workspaces, of("after", "", "shop")))
	lc := in.await(logicalClusters, "", "cluster", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "APIBindingsInitialized") == "False APIBindingErrors"
	})
	if got := fmt.Sprint(lc.Object["status"]); !strings.Contains(got, "another one than when") {
		t.Errorf("the workspace waits: %s", got)
	}
	patch(`{"spec":{"defaultAPIBindings":[]}}`)
	second.exportFor("ada")
	patch(`{"spec":{"defaultAPIBindings":[` + entry + `]}}`)
	if ws := owner.create(workspaces, of("checked", "", "shop")); text(ws, "status", "phase") != "Ready" {
		t.Errorf("after the entry was added again, the new workspace is %v", ws.Object["status"])
	}
}
