package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// Built-in and reserved resources cannot be defined.
func TestReservedDefinitions(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	approved := "{metadata: {annotations: {api-approved.kubernetes.io: \"unapproved, for a test\"}}}"
	for name, tc := range map[string]struct {
		plural, group, words string
		refused              func(error) bool
	}{
		"no group":        {"configmaps", "", `must be spec.names.plural+".core"`, apierrors.IsInvalid},
		"named core":      {"widgets", "core", "should be a domain with at least one dot", apierrors.IsInvalid},
		"leases":          {"leases", "coordination.k8s.io", "is served by the server itself", apierrors.IsForbidden},
		"events":          {"events", "events.k8s.io", "is served by the server itself", apierrors.IsForbidden},
		"definitions":     {"customresourcedefinitions", "apiextensions.k8s.io", "is served by the server itself", apierrors.IsForbidden},
		"workspaces":      {"workspaces", "tenancy.kcp.io", "is served by the server itself", apierrors.IsForbidden},
		"clusters":        {"logicalclusters", "core.kcp.io", "is served by the server itself", apierrors.IsForbidden},
		"reserved":        {"widgets", "apis.kcp.io", "reserved group", apierrors.IsForbidden},
		"below":           {"widgets", "a.b.apis.kcp.io", "reserved group", apierrors.IsForbidden},
		"slash":           {"widgets", "a/b.com", "spec.group: Invalid value", apierrors.IsInvalid},
		"parent":          {"widgets", "../../root", "spec.group: Invalid value", apierrors.IsInvalid},
		"colon":           {"widgets", "example.com:x", "spec.group: Invalid value", apierrors.IsInvalid},
		"star":            {"*", "example.com", "spec.names.plural: Invalid value", apierrors.IsInvalid},
		"plural dots":     {"wid.gets", "example.com", "spec.names.plural: Invalid value", apierrors.IsInvalid},
		"plural identity": {"widgets:abc", "example.com", "spec.names.plural: Invalid value", apierrors.IsInvalid},
		"long group":      {"widgets", strings.Repeat("a.", 200) + "com", "Invalid value", apierrors.IsInvalid},
	} {
		d := crd(t, "widgets", approved)
		d.Name, d.Spec.Group, d.Spec.Names.Plural = tc.plural+"."+tc.group, tc.group, tc.plural
		if _, err := c.crds().Create(t.Context(), d, metav1.CreateOptions{}); err == nil || !tc.refused(err) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.any.Resource(definitions).Apply(t.Context(), d.Name, withKind(unstructuredOf(t, d)), metav1.ApplyOptions{FieldManager: "m"}); err == nil || !(tc.refused(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)) {
			if !strings.Contains(fmt.Sprint(err), "invalid") { // the client refuses some names itself
				t.Errorf("%s applied: %v", name, err)
			}
		}
	}
	for _, value := range []string{"", "true"} {
		marked := crd(t, "widgets", fmt.Sprintf(`metadata: {annotations: {apis.kcp.io/bound-crd: %q}}`, value))
		if _, err := c.crds().Create(t.Context(), marked, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("marked as bound, with %q: %v", value, err)
		}
	}
	// In groups of the server, names that the server does not use can be defined.
	other := c.newKind(crd(t, "boxes", "{metadata: {name: boxes.tenancy.kcp.io}, spec: {group: tenancy.kcp.io, names: {shortNames: [ws, box]}}}"))
	if conditionIs(other, apiextensionsv1.Established, "True") && strings.Contains(fmt.Sprint(other.Status.AcceptedNames.ShortNames), "ws") {
		t.Errorf("the short name of workspaces: %v", other.Status)
	}
	must(c.any.Resource(workspaces).List(t.Context(), metav1.ListOptions{}))(t)
}

func withKind(o *unstructured.Unstructured) *unstructured.Unstructured {
	o.SetAPIVersion("apiextensions.k8s.io/v1")
	o.SetKind("CustomResourceDefinition")
	return o
}

// Forged metadata and status of a definition give no access to other resources and break
// nothing.
func TestForgedDefinitions(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	d := crd(t, "widgets", fmt.Sprintf(`{metadata: {annotations: {kcp.io/cluster: %s}, uid: forged, resourceVersion: "", generation: 77}, status: {storedVersions: [v7], acceptedNames: {plural: others, kind: Other}, conditions: [{type: Established, status: "False"}]}}`, other.name))
	made := c.newKind(d)
	if made.Annotations["kcp.io/cluster"] != string(c.name) || made.UID == "forged" || made.Generation != 1 || fmt.Sprint(made.Status.StoredVersions) != "[v1]" || made.Status.AcceptedNames.Plural != "widgets" {
		t.Errorf("made %+v", made)
	}
	if _, err := other.crds().Get(t.Context(), d.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("elsewhere: %v", err)
	}
	c.instance(made, "o", "metadata: {annotations: {kcp.io/cluster: "+string(other.name)+"}}")
	victim := c.newKind(crd(t, "treasures"))
	c.instance(victim, "o")
	still := func(how string) {
		t.Helper()
		if o, err := c.of(victim).Get(t.Context(), "o", metav1.GetOptions{}); err != nil || o.GetKind() != "Treasure" {
			t.Errorf("%s: %v, %v", how, o, err)
		}
		got := must(c.redefine(d.Name, "metadata: {labels: {settled: "+strings.ReplaceAll(how, " ", "-")+"}}"))(t)
		if !conditionIs(got, apiextensionsv1.Established, "True") || got.Status.AcceptedNames.Plural != "widgets" {
			t.Errorf("%s: not settled again: %+v", how, got.Status)
		}
		if o, err := c.of(made).Get(t.Context(), "o", metav1.GetOptions{}); err != nil || o.GetAnnotations()["kcp.io/cluster"] != string(c.name) {
			t.Errorf("%s: %v, %v", how, o, err)
		}
	}
	for how, status := range map[string]string{
		"plural of another": "acceptedNames: {plural: treasures, singular: treasure, kind: Treasure, listKind: TreasureList}",
		"no names":          "acceptedNames: null",
		"no conditions":     "conditions: null",
		"no versions":       "storedVersions: [v1]",
		"odd kind":          `acceptedNames: {kind: "a/b", listKind: "../x"}`,
		"many":              "acceptedNames: {shortNames: [" + manyNames() + "], categories: [all]}",
	} {
		if _, err := c.redefine(d.Name, "status: {"+status+"}", "status"); err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", how, err)
		}
		for _, path := range []string{"/apis/example.com/v1", "/openapi/v3/apis/example.com/v1", "/apis"} {
			must(c.kube.CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).Raw())(t)
		}
		_, _ = c.of(made).List(t.Context(), metav1.ListOptions{}) // any response is allowed
		still(how)
		for verb, write := range map[string]func() error{
			"update": func() error {
				now := must(c.crds().Get(t.Context(), d.Name, metav1.GetOptions{}))(t)
				now.Status = apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: apiextensionsv1.CustomResourceDefinitionNames{Plural: "treasures"}}
				_, err := c.crds().Update(t.Context(), now, metav1.UpdateOptions{})
				return err
			},
			"patch": func() error { _, err := c.redefine(d.Name, "status: {"+status+"}"); return err },
		} {
			if err := write(); err != nil {
				t.Errorf("%s, by %s: %v", how, verb, err)
			}
			if got := must(c.crds().Get(t.Context(), d.Name, metav1.GetOptions{}))(t); got.Status.AcceptedNames.Plural != "widgets" || !conditionIs(got, apiextensionsv1.Established, "True") {
				t.Errorf("%s, by %s: %+v", how, verb, got.Status)
			}
		}
	}
	// A user sets Established for a definition whose kind belongs to another one.
	waiting := c.newKind(crd(t, "waitings", "spec: {names: {kind: Treasure}}"))
	if _, err := c.redefine(waiting.Name, `status: {acceptedNames: {plural: waitings, singular: waiting, kind: Treasure, listKind: TreasureList}, conditions: [{type: Established, status: "True", reason: a, message: b, lastTransitionTime: "2020-01-01T00:00:00Z"}]}`, "status"); err != nil {
		t.Fatal(err)
	}
	still("established by hand")
	c.undefine(waiting.Name)
	c.undefined(waiting)
	// The definition can still be deleted with its objects.
	c.undefine(d.Name)
	c.undefined(made)
}

func manyNames() string {
	all := make([]string, 500)
	for i := range all {
		all[i] = fmt.Sprint("s", i)
	}
	return strings.Join(all, ", ")
}

// Only users with RBAC rights can write definitions, and only in their own cluster, with any
// form of path.
func TestWhoDefines(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	mine := c.owner()
	d := other.newKind(crd(t, "treasures"))
	other.instance(d, "o", "spec: {k: "+gold+"}")
	body := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"holes.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"holes","kind":"Hole"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	for _, prefix := range []string{
		"/clusters/" + string(other.name), "/clusters/" + string(c.name) + "/clusters/" + string(other.name), "/clusters/" + string(c.name) + "/../" + string(other.name),
		"/clusters/" + string(c.name) + "%2f..%2f" + string(other.name), "/clusters/*", "//clusters/" + string(other.name), "/clusters/" + string(c.name) + "/apis/../../" + string(other.name),
	} {
		for _, v := range []visitor{mine, c.nobody(), c.anonymous()} {
			for method, path := range map[string]string{"POST": definitionsPath, "GET": definitionsPath + "/treasures.example.com", "DELETE": definitionsPath + "/treasures.example.com", "PATCH": definitionsPath + "/treasures.example.com"} {
				a := v.send(method, prefix+path, body, "Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[method == "PATCH"])
				if a.ok() || a.broken() {
					t.Errorf("%s %s %s%s: %d %.200s", v.name, method, prefix, path, a.code, a.body)
				}
			}
			v.send("GET", prefix+"/apis/example.com/v1/treasures", "")
			v.send("GET", prefix+"/apis/example.com/v1/namespaces/default/treasures/o", "")
		}
	}
	for _, v := range []visitor{c.nobody(), c.anonymous(), other.owner()} {
		if a := v.send("POST", c.path(definitionsPath), body, "Content-Type", "application/json"); a.code != 403 && a.code != 401 {
			t.Errorf("%s: %d %s", v.name, a.code, a.body)
		}
	}
	if a := mine.send("POST", c.path(definitionsPath), body, "Content-Type", "application/json"); a.code != 201 {
		t.Errorf("owner: %d %s", a.code, a.body)
	}
	if got := must(other.crds().List(t.Context(), metav1.ListOptions{}))(t); len(got.Items) != 1 || got.Items[0].ResourceVersion != d.ResourceVersion {
		t.Errorf("there are now %v", got.Items)
	}
}

// Roles for custom resources apply to users of the built-in roles that they are aggregated
// to.
func TestRolesOfCustomResources(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	c.instance(d, "o")
	for name, verbs := range map[string][]string{"view": {"get", "list", "watch"}, "edit": {"create", "delete"}} {
		must(c.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "widgets-" + name, Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + name: "true"}},
			Rules:      []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}},
		}, metav1.CreateOptions{}))(t)
	}
	for user, roles := range map[string][]string{"viewer": {"view"}, "editor": {"edit"}, "stranger": nil} {
		for _, role := range append(roles, "system:kcp:workspace:access") {
			must(c.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "b"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			}, metav1.CreateOptions{}))(t)
		}
	}
	viewer, editor, stranger := at(t, c.server, c.name, as("viewer")), at(t, c.server, c.name, as("editor")), at(t, c.server, c.name, as("stranger"))
	for who, may := range map[*tenant]struct{ read, write bool }{viewer: {true, false}, editor: {true, true}, stranger: {false, false}} {
		_, err := who.of(d).Get(t.Context(), "o", metav1.GetOptions{})
		if (err == nil) != may.read || (err != nil && !apierrors.IsForbidden(err)) {
			t.Errorf("read: %v", err)
		}
		_, err = who.of(d).Create(t.Context(), instance(d, "new"), metav1.CreateOptions{})
		if (err == nil) != may.write || (err != nil && !apierrors.IsForbidden(err)) {
			t.Errorf("create: %v", err)
		}
		if _, err := who.any.Resource(definitions).Patch(t.Context(), d.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("change of the definition: %v", err)
		}
	}
}

// A tenant that creates and deletes definitions rapidly does not affect others, and leaves
// nothing behind.
func TestRestlessDefinitions(t *testing.T) {
	t.Parallel()
	restless, quiet := newTenant(t), newTenant(t)
	before := left(t, restless.server.Store(), restless.name)
	writers, each := 6, size(15, 50)
	d := quiet.newKind(crd(t, "widgets"))
	v := quiet.owner()
	stop := make(chan struct{})
	var wg, other sync.WaitGroup
	other.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprint("o", n)
			alive(t, quiet, v, name)
			if o, err := quiet.of(d).Create(t.Context(), instance(d, name, "spec: {number: "+fmt.Sprint(n)+"}"), metav1.CreateOptions{}); err != nil || text(o, "spec", "number") != fmt.Sprint(n) {
				t.Errorf("beside: %v", err)
			}
			if l, err := quiet.of(d).List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != n+1 {
				t.Errorf("beside: %d of %d, %v", len(l.Items), n+1, err)
			}
		}
	})
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				d := crd(t, "widgets", fmt.Sprintf("{metadata: {name: widgets.g%[1]dx%[2]d.com}, spec: {group: g%[1]dx%[2]d.com}}", w, i), schemaOf(fmt.Sprintf("{type: object, description: d%dx%d}", w, i)))
				if _, err := restless.crds().Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
					t.Errorf("%s: %v", d.Name, err)
					continue
				}
				if i%5 == 0 {
					if _, err := restless.of(d).Create(t.Context(), instance(d, "o"), metav1.CreateOptions{}); err != nil {
						t.Errorf("%s: %v", d.Name, err)
					}
				}
				if err := restless.crds().Delete(t.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
					t.Errorf("%s: %v", d.Name, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	other.Wait()
	for w := range writers {
		for i := range each {
			restless.await(definitions, "", fmt.Sprintf("widgets.g%dx%d.com", w, i), gone)
		}
	}
	const claims = 16 // keys that claim names
	if after := left(t, restless.server.Store(), restless.name); len(after) > len(before)+claims {
		t.Errorf("%d keys are left, before %d: %v", len(after), len(before), after)
	}
}
