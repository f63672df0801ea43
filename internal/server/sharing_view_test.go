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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
)

// provides grants a user the content of the export widgets, and all others to bind it.
func (c *tenant) provides(name string) {
	c.t.Helper()
	c.allows("provide", rbacv1.UserKind, name, []string{rbacv1.VerbAll}, "apiexports/content")
	c.allows("bind", rbacv1.GroupKind, user.AllAuthenticated, []string{"bind"}, "apiexports")
}

// allows grants verbs on a resource of apis.kcp.io, and to enter the cluster.
func (c *tenant) allows(role, kind, name string, verbs []string, resource string) {
	c.t.Helper()
	must(c.kube.RbacV1().ClusterRoles().Create(c.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		Rules: []rbacv1.PolicyRule{
			{Verbs: verbs, APIGroups: []string{"apis.kcp.io"}, Resources: []string{resource}},
			{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}},
		},
	}, metav1.CreateOptions{}))(c.t)
	must(c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		Subjects:   []rbacv1.Subject{{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}, metav1.CreateOptions{}))(c.t)
}

// view returns the view of the export widgets for a user.
func (c *tenant) view(name string) *viewer {
	return &viewer{c.t, c.server, "/services/apiexport/" + string(c.name) + "/widgets/clusters/", as(name)}
}

// widgets returns the client of widgets for the whole view or for one of its clusters.
func (v *viewer) widgets(at cluster.Name) dynamic.NamespaceableResourceInterface {
	v.t.Helper()
	return must(dynamic.NewForConfig(v.config(string(at))))(v.t).Resource(sharedWidgets)
}

// TestAProviderSeesAllConsumers shows the view of an export: its list and watch have the objects
// of all clusters that bind the export, and of no other.
func TestAProviderSeesAllConsumers(t *testing.T) {
	t.Parallel()
	p, stranger := exporter(t), exporter(t)
	p.provides("pat")
	a, b, c := newTenant(t), newTenant(t), newTenant(t)
	a.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	b.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	c.create(apiBindings, bindingTo("widgets", stranger.name, "widgets"))
	for _, of := range []*tenant{a, b, c} {
		of.create(sharedWidgets, newWidget("w"))
	}
	pat := p.view("pat")
	list := must(pat.widgets("*").List(t.Context(), metav1.ListOptions{}))(t)
	want := []string{string(a.name), string(b.name)}
	slices.Sort(want)
	if got := names(list); !slices.Equal(got, want) {
		t.Fatalf("in the view are %v, not %v", got, want)
	}
	w := must(pat.widgets("*").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	defer w.Stop()
	expect := func(kind watch.EventType, in *tenant, name string) {
		t.Helper()
		e := next(t, w)
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type != kind || cluster.Of(o) != in.name || o.GetName() != name {
			t.Fatalf("the event is %s %v, not %s of %s in %s", e.Type, e.Object, kind, name, in.name)
		}
	}
	a.create(sharedWidgets, newWidget("another"))
	expect(watch.Added, a, "another")

	one := must(pat.widgets(a.name).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t)
	_ = unstructured.SetNestedField(one.Object, "Done", "status", "phase")
	must(pat.widgets(a.name).Namespace("default").UpdateStatus(t.Context(), one, metav1.UpdateOptions{}))(t)
	expect(watch.Modified, a, "w")
	if got := text(must(a.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t), "status", "phase"); got != "Done" {
		t.Errorf("the consumer sees the phase %q", got)
	}

	if err := b.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, b, "w")
	b.await(apiBindings, "", "widgets", gone)
	b.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	b.create(sharedWidgets, newWidget("new"))
	expect(watch.Added, b, "new")
}

// TestAWatchOfAllConsumersEndsWithItsSchema shows that the watch of a provider ends when the
// export gets another schema, so that the next one has the objects as that schema has them.
func TestAWatchOfAllConsumersEndsWithItsSchema(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	p.provides("pat")
	w := must(p.view("pat").widgets("*").Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	must(p.any.Resource(apiExports).Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))(t)
	consumer := newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	consumer.create(sharedWidgets, newWidget("w"))
	if e := next(t, w); e.Type != watch.Added {
		t.Fatalf("another change of the export: %v", e)
	}
	must(p.any.Resource(apiExports).Patch(t.Context(), "widgets", types.MergePatchType,
		[]byte(`{"spec":{"resources":[{"name":"widgets","group":"example.com","schema":"v2.widgets.example.com"}]}}`), metav1.PatchOptions{}))(t)
	for open := true; open; {
		_, open = <-w.ResultChan()
	}
}

// TestAWatchOfAllConsumersEndsWithAnotherSchemaOfTheName shows that the watch of a provider also ends
// when the schema is created again under its name, with other content.
func TestAWatchOfAllConsumersEndsWithAnotherSchemaOfTheName(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	p.provides("pat")
	w := must(p.view("pat").widgets("*").Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	if err := p.any.Resource(apiSchemas).Delete(t.Context(), "v1.widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.create(apiSchemas, widgetSchema("v1", "shape"))
	for open := true; open; {
		_, open = <-w.ResultChan()
	}
}

// TestAnExportIsDiscovered shows discovery and bindings in the view of an export.
func TestAnExportIsDiscovered(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	p.provides("pat")
	pat := p.view("pat")
	if got := must(pat.widgets("*").List(t.Context(), metav1.ListOptions{}))(t); len(got.Items) != 0 {
		t.Errorf("without bindings the view has %v", got.Items)
	}
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	consumer.create(apiBindings, bindingTo("other", exporter(t).name, "widgets"))
	_, resources, err := pat.kube("*").Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, l := range resources {
		for _, r := range l.APIResources {
			all = append(all, r.Name)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all) // versions
	if want := []string{"apibindings", "widgets", "widgets/status"}; !slices.Equal(all, want) {
		t.Errorf("the view has %v, not %v", all, want)
	}
	for _, at := range []cluster.Name{"*", consumer.name} {
		list := must(must(dynamic.NewForConfig(pat.config(string(at))))(t).Resource(apiBindings).List(t.Context(), metav1.ListOptions{}))(t)
		if len(list.Items) != 1 || list.Items[0].GetName() != "widgets" {
			t.Errorf("bindings in %s: %v", at, list.Items)
		}
	}
	if _, err := must(dynamic.NewForConfig(pat.config(string(consumer.name))))(t).Resource(apiBindings).Get(t.Context(), "other", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a binding to another export: %v", err)
	}
}

// TestAnEndpointIsThereWhileSomebodyBinds shows the URL in the APIExportEndpointSlice of an export.
func TestAnEndpointIsThereWhileSomebodyBinds(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	endpoints := func(o *unstructured.Unstructured) int {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "endpoints")
		return len(all)
	}
	p.await(apiSlices, "", "widgets", func(o *unstructured.Unstructured) bool { return o != nil && endpoints(o) == 0 })
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	p.await(apiSlices, "", "widgets", func(o *unstructured.Unstructured) bool { return endpoints(o) == 1 })
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.await(apiSlices, "", "widgets", func(o *unstructured.Unstructured) bool { return endpoints(o) == 0 })
}

// allowsIn grants a user verbs on a resource of a group.
func (c *tenant) allowsIn(role, name string, verbs []string, group, resource string) {
	c.t.Helper()
	must(c.kube.RbacV1().ClusterRoles().Create(c.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{group}, Resources: []string{resource}}},
	}, metav1.CreateOptions{}))(c.t)
	must(c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}, metav1.CreateOptions{}))(c.t)
}

// TestASliceKeepsItsWorkspace shows that an endpoint slice does not follow its path to the export of
// another workspace: its creator was not asked for the right to bind that one.
func TestASliceKeepsItsWorkspace(t *testing.T) {
	t.Parallel()
	home, watcher, consumer := newTenant(t), newTenant(t), newTenant(t)
	provide := func() *tenant {
		p := home.inside(home.create(workspaces, workspace("tools")))
		p.create(apiSchemas, widgetSchema("v1", "color"))
		p.create(apiExports, widgetExport("widgets", "v1"))
		return p
	}
	first := provide()
	watcher.create(apiSlices, decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportEndpointSlice, metadata: {name: theirs}, spec: {export: {path: "%s:tools", name: widgets}}}`, home.name))
	consumer.create(apiBindings, bindingTo("widgets", first.name, "widgets"))
	watcher.until(apiSlices, "theirs", "APIExportValid True", string(first.name))
	home.deleteWorkspace("tools")
	home.await(workspaces, "", "tools", gone)
	watcher.until(apiSlices, "theirs", "APIExportValid False APIExportNotFound")

	second := provide()
	other := newTenant(t)
	other.create(apiBindings, bindingTo("widgets", second.name, "widgets"))
	second.until(apiSlices, "widgets", "APIExportValid True", viewPath+string(second.name))
	o := watcher.until(apiSlices, "theirs", "APIExportValid False APIExportNotFound", "is another workspace")
	if status := fmt.Sprint(o.Object["status"]); strings.Contains(status, string(second.name)) || strings.Contains(status, viewPath) {
		t.Errorf("the slice tells of the export of the other workspace: %s", status)
	}
}
