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
	"k8s.io/client-go/dynamic"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
)

// things returns the client of things for the whole view or for one of its clusters.
func (v *viewer) things(at cluster.Name) dynamic.ResourceInterface {
	v.t.Helper()
	return must(dynamic.NewForConfig(v.config(string(at))))(v.t).Resource(things)
}

// TestAProviderReachesOnlyItsIdentity shows that an export gives no access to resources that
// a consumer has from elsewhere, whatever the export says that it has.
func TestAProviderReachesOnlyItsIdentity(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	p.provides("pat")
	pat := p.view("pat")
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	consumer.create(definitionsOfResources, colored("red"))
	consumer.create(things, thing("own", "red"))
	p.create(apiSchemas, decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: v1.things.example.com}
spec:
  group: example.com
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {type: object, properties: {color: {type: string}}}}]
`))
	ofThings := `{"group":"example.com","name":"things","schema":"v1.things.example.com","storage":{"crd":{}}}`
	p.merge(apiExports, "", "widgets", `{"spec":{"resources":[`+ofThings+`]}}`)
	consumer.until(apiBindings, "widgets", "BindingUpToDate False NamingConflicts")
	_, list := pat.things(consumer.name).List(t.Context(), metav1.ListOptions{})
	_, get := pat.things(consumer.name).Get(t.Context(), "own", metav1.GetOptions{})
	_, create := pat.things(consumer.name).Create(t.Context(), thing("forged", "red"), metav1.CreateOptions{})
	_, watch := pat.things(consumer.name).Watch(t.Context(), metav1.ListOptions{})
	for what, err := range map[string]error{"list": list, "get": get, "create": create, "watch": watch,
		"delete":           pat.things(consumer.name).Delete(t.Context(), "own", metav1.DeleteOptions{}),
		"deletecollection": pat.things(consumer.name).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})} {
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s of a consumer's own resource: %v", what, err)
		}
	}
	if all := must(pat.things("*").List(t.Context(), metav1.ListOptions{}))(t); len(all.Items) > 0 {
		t.Errorf("the view has a consumer's own objects: %v", all.Items)
	}

	p.without(apiExports, "widgets")
	anonymous := widgetExport("widgets", "v1")
	_ = unstructured.SetNestedStringMap(anonymous.Object, map[string]string{"namespace": "default", "name": "missing"}, "spec", "identity", "secretRef")
	p.create(apiExports, anonymous)
	p.merge(apiExports, "", "widgets", `{"spec":{"resources":[`+ofThings+`]}}`)
	for _, at := range []cluster.Name{cluster.All, consumer.name} {
		if _, err := pat.things(at).List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("in %s, without an identity: %v", at, err)
		}
	}
}

// TestARightToBindIsForOneWorkspace shows that the right to bind an export is that for the workspace
// that is bound, even if another workspace takes its place under its path after admission.
func TestARightToBindIsForOneWorkspace(t *testing.T) {
	t.Parallel()
	b, of := inPlaceOfAnother(t, apiBindings, func(path string) *unstructured.Unstructured {
		return bindingTo("widgets", cluster.Name(path), "widgets")
	})
	if text(b, "status", "apiExportClusterName") != of || text(b, "status", "phase") != "Bound" {
		t.Errorf("with the right: %v", b.Object["status"])
	}
}

// TestARightToASliceIsForOneWorkspace shows the same for endpoint slices. A slice has its status when its creation
// returns, so its path never leads to another workspace before that.
func TestARightToASliceIsForOneWorkspace(t *testing.T) {
	t.Parallel()
	s, of := inPlaceOfAnother(t, apiSlices, func(path string) *unstructured.Unstructured {
		return decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportEndpointSlice, metadata: {name: widgets}, spec: {export: {path: "%s", name: widgets}}}`, path)
	})
	if text(s, "status", "exportClusterName") != of {
		t.Errorf("with the right: %v", s.Object["status"])
	}
}

// inPlaceOfAnother creates an object that refers to the export at a path, and puts another workspace in the place of
// the one there before the object is stored. It expects that a right in the first does not count. With a right in the
// second, it returns the object and the name of that workspace.
func inPlaceOfAnother(t *testing.T, r schema.GroupVersionResource, referring func(path string) *unstructured.Unstructured) (*unstructured.Unstructured, string) {
	home, in := newTenant(t), newTenant(t)
	in.allow("connie")
	provide := func() *tenant {
		p := home.workspace("tools")
		p.create(apiSchemas, widgetSchema("v1", "color"))
		p.create(apiExports, widgetExport("widgets", "v1"))
		return p
	}
	provide().allow("connie")
	connie := at(t, in.server, in.name, as("connie"))
	path := string(home.name) + ":tools"
	held, done := in.hold("widgets"), make(chan error, 1)
	go func() {
		_, err := connie.any.Resource(r).Create(t.Context(), referring(path), metav1.CreateOptions{})
		done <- err
	}()
	<-held.reached
	home.deleteWorkspace("tools")
	home.await(workspaces, "", "tools", gone)
	second := provide()
	close(held.release)
	if err := <-done; !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no permission to bind to export "+path+":widgets") {
		t.Errorf("with a right in the workspace before: %v", err)
	}
	if _, err := in.any.Resource(r).Get(t.Context(), "widgets", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the refused object: %v", err)
	}
	second.allow("connie")
	return connie.create(r, referring(path)), string(second.name)
}

// TestAnotherExportAtThePath shows that an export that takes the place of a bound one gets nothing
// that the consumer granted to the other, and that the binding continues with its export.
func TestAnotherExportAtThePath(t *testing.T) {
	t.Parallel()
	home, consumer := newTenant(t), newTenant(t)
	path := cluster.Name(string(home.name) + ":tools")
	provide := func(secret string) *tenant {
		p := home.workspace("tools")
		p.provides("pat")
		p.create(apiSchemas, widgetSchema("v1", "color"))
		if secret != "" {
			must(p.kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"key": secret}}, metav1.CreateOptions{}))(t)
		}
		for name, resources := range map[string]string{"widgets": `[{name: widgets, group: example.com, schema: v1.widgets.example.com}]`, "helper": "[]"} {
			e := decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: %s}, spec: {resources: %s, permissionClaims: [{resource: secrets, verbs: [get, list, watch]}]}}`, name, resources)
			if secret != "" {
				_ = unstructured.SetNestedStringMap(e.Object, map[string]string{"namespace": "default", "name": "key"}, "spec", "identity", "secretRef")
			}
			p.create(apiExports, e)
		}
		return p
	}
	first := provide("first")
	consumer.create(apiBindings, answering(path, acceptSecrets))
	helper := answering(path, acceptSecrets)
	helper.SetName("helper")
	_ = unstructured.SetNestedField(helper.Object, "helper", "spec", "reference", "export", "name")
	consumer.create(apiBindings, helper)
	uid := consumer.create(sharedWidgets, newWidget("w")).GetUID()
	consumer.secret("password", nil)
	sees := func(p *tenant) bool {
		v := p.view("pat")
		must(v.widgets(consumer.name).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t)
		return len(must(v.kube("*").CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}))(t).Items) > 0
	}
	if !sees(first) {
		t.Fatal("the provider does not see the secrets that it claims")
	}
	replace := func() {
		home.deleteWorkspace("tools")
		home.await(workspaces, "", "tools", gone)
	}
	replace()
	second := provide("")
	for _, name := range []string{"widgets", "helper"} {
		consumer.until(apiBindings, name, "APIExportValid False APIExportInvalidReference", string(first.name))
	}
	for _, name := range []string{"widgets", "helper"} {
		v := second.view("pat")
		v.url = "/services/apiexport/" + string(second.name) + "/" + name + "/clusters/"
		_, own := v.widgets(consumer.name).List(t.Context(), metav1.ListOptions{})
		_, claimed := v.kube(consumer.name).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		if name == "widgets" && !apierrors.IsForbidden(own) || !apierrors.IsForbidden(claimed) {
			t.Errorf("another export %s reads: %v, %v", name, own, claimed)
		}
		if all := must(v.kube("*").CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}))(t); len(all.Items) > 0 {
			t.Errorf("another export %s reads secrets of all consumers: %d", name, len(all.Items))
		}
	}
	replace()
	third := provide("first")
	consumer.until(apiBindings, "widgets", "Ready True", string(third.name))
	if !sees(third) || must(consumer.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t).GetUID() != uid {
		t.Error("the export is not the same after it was restored with its key")
	}
}

// TestAWaitingBindingKeepsItsExport shows that a binding that could not be bound yet does not follow
// its path to the export of another workspace: nobody was allowed to bind that.
func TestAWaitingBindingKeepsItsExport(t *testing.T) {
	t.Parallel()
	home, owner, other := newTenant(t), newTenant(t), exporter(t)
	path := cluster.Name(string(home.name) + ":tools")
	provide := func() *tenant {
		p := home.workspace("tools")
		p.provides("pat")
		p.create(apiSchemas, widgetSchema("v1", "color"))
		e := widgetExport("widgets", "v1")
		_ = unstructured.SetNestedSlice(e.Object, []any{map[string]any{"group": "", "resource": "secrets", "verbs": []any{"list"}}}, "spec", "permissionClaims")
		p.create(apiExports, e)
		return p
	}
	first := provide()
	owner.create(workspaceTypes, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: shop}, spec: {defaultAPIBindingLifecycle: Maintain, extend: {with: [{name: universal, path: root}]}}}`))
	consumer := owner.inside(owner.create(workspaces, of("w", "", "shop")))
	consumer.create(apiBindings, bindingTo("first", other.name, "widgets"))
	owner.merge(workspaceTypes, "", "shop", `{"spec":{"defaultAPIBindings":[{"export":"widgets","path":"`+string(path)+`"}]}}`)
	both := []string{apisv1alpha2.DefaultBindingName(string(consumer.name), string(path), "widgets"), "waits"}
	consumer.until(apiBindings, both[0], "InitialBindingCompleted False NamingConflicts")
	waits := answering(path, acceptSecrets)
	waits.SetName("waits")
	consumer.create(apiBindings, waits)
	for _, name := range both {
		consumer.until(apiBindings, name, "InitialBindingCompleted False NamingConflicts", string(first.name))
	}
	home.deleteWorkspace("tools")
	home.await(workspaces, "", "tools", gone)
	second := provide()
	consumer.without(apiBindings, "first")
	for _, name := range both {
		consumer.until(apiBindings, name, "APIExportValid False APIExportInvalidReference", string(first.name))
	}
	consumer.secret("s", nil)
	if all := must(second.view("pat").kube("*").CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}))(t); len(all.Items) > 0 {
		t.Errorf("the other provider reads %d secrets", len(all.Items))
	}
	consumer.without(apiBindings, "waits")
	b := consumer.create(apiBindings, answering(path, acceptSecrets))
	if text(b, "status", "phase") != "Bound" || text(b, "status", "apiExportClusterName") != string(second.name) {
		t.Errorf("a new binding is %v", b.Object["status"])
	}
}

// TestAWatchOfAClaimEndsWithTheExport shows that a provider gets no claimed objects after the end of
// its export.
func TestAWatchOfAClaimEndsWithTheExport(t *testing.T) {
	t.Parallel()
	p, consumer := claiming(t, claimSecrets), newTenant(t)
	consumer.create(apiBindings, answering(p.name, acceptSecrets))
	pat := p.view("pat")
	for _, at := range []cluster.Name{cluster.All, consumer.name} {
		all := must(dynamic.NewForConfig(pat.config(string(at))))(t)
		var watches []watch.Interface
		for _, w := range []func() (watch.Interface, error){
			func() (watch.Interface, error) {
				return pat.kube(at).CoreV1().Secrets("").Watch(t.Context(), metav1.ListOptions{})
			},
			func() (watch.Interface, error) {
				return all.Resource(sharedWidgets).Watch(t.Context(), metav1.ListOptions{})
			},
			func() (watch.Interface, error) {
				return all.Resource(apiBindings).Watch(t.Context(), metav1.ListOptions{})
			},
		} {
			watches = append(watches, must(w())(t))
		}
		p.without(apiExports, "widgets")
		for _, w := range watches {
			for open := true; open; {
				_, open = <-w.ResultChan()
			}
		}
		e := widgetExport("widgets", "v1")
		_ = unstructured.SetNestedField(e.Object, decoded("%s", claimSecrets).Object["claims"], "spec", "permissionClaims")
		p.create(apiExports, e)
		consumer.until(apiBindings, "widgets", "Ready True")
	}
}

// TestAWatchOfAnotherExportsResourceEndsWithTheExport shows that a provider gets no objects of a
// claimed resource with an identity after the end of its own export.
func TestAWatchOfAnotherExportsResourceEndsWithTheExport(t *testing.T) {
	t.Parallel()
	owner, p := exporter(t), newTenant(t)
	identity := text(must(owner.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: reads}, spec: {permissionClaims: [{group: example.com, resource: widgets, identityHash: %s, verbs: [list, watch]}]}}`, identity))
	p.provides("pat")
	v := p.view("pat")
	v.url = "/services/apiexport/" + string(p.name) + "/reads/clusters/"
	w := must(v.widgets("*").Watch(t.Context(), metav1.ListOptions{}))(t)
	p.without(apiExports, "reads")
	for open := true; open; {
		_, open = <-w.ResultChan()
	}
}

// TestOneSuccessorTakesOver shows that of two bindings that wait for the resources of a third, one
// has them after the end of the third.
func TestOneSuccessorTakesOver(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("old", p.name, "widgets"))
	uid := consumer.create(sharedWidgets, newWidget("w")).GetUID()
	for _, name := range []string{"one", "two"} {
		next := widgetExport(name, "v1")
		_ = unstructured.SetNestedStringMap(next.Object, map[string]string{"namespace": "kcp-system", "name": "widgets"}, "spec", "identity", "secretRef")
		p.create(apiExports, next)
		consumer.create(apiBindings, bindingTo(name, p.name, name))
	}
	consumer.without(apiBindings, "old")
	consumer.await(apiBindings, "", "old", gone)
	consumer.until(apiBindings, "one", "Ready True")
	if two := must(consumer.any.Resource(apiBindings).Get(t.Context(), "two", metav1.GetOptions{}))(t); text(two, "status", "phase") == "Bound" {
		t.Errorf("both bindings have the resource: %v", two.Object["status"])
	}
	consumer.without(apiBindings, "two")
	consumer.await(apiBindings, "", "two", gone)
	if w := must(consumer.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t); w.GetUID() != uid {
		t.Errorf("the object is another: %v", w.Object)
	}
}

// TestABindingKeepsItsFinalizer shows that no user removes the finalizer with which a binding waits for
// the deletion of its objects.
func TestABindingKeepsItsFinalizer(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.allows("finalize", "User", "carl", []string{"get", "patch"}, "apibindings")
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	carl := must(dynamic.NewForConfig(consumer.server.InProcess(string(consumer.name), as("carl"))))(t).Resource(apiBindings)
	b := must(carl.Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
	if !slices.Contains(b.GetFinalizers(), apisv1alpha2.BindingFinalizer) {
		t.Errorf("the finalizers are %v", b.GetFinalizers())
	}
}

// TestALastBindingTakesTheObjectsAlong shows that objects that pass to a binding end with it, also
// if it is deleted at the same time.
func TestALastBindingTakesTheObjectsAlong(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	next := widgetExport("next", "v1")
	_ = unstructured.SetNestedStringMap(next.Object, map[string]string{"namespace": "kcp-system", "name": "widgets"}, "spec", "identity", "secretRef")
	p.create(apiExports, next)
	for i := range 5 {
		all := []string{"old", "new"}
		consumer.create(apiBindings, bindingTo("old", p.name, "widgets"))
		consumer.create(sharedWidgets, newWidget("w"))
		consumer.create(apiBindings, bindingTo("new", p.name, "next"))
		if i%2 == 1 {
			slices.Reverse(all)
		}
		for _, name := range all {
			consumer.without(apiBindings, name)
		}
		for _, name := range all {
			consumer.await(apiBindings, "", name, gone)
		}
		for _, key := range left(t, consumer.server.Store(), consumer.name) {
			if containsAll(key, []string{"/widgets/"}) {
				t.Fatalf("left without a binding: %s", key)
			}
		}
	}
}

// TestTheSecretOfAnIdentityComesBack shows that an export without the secret of its identity keeps
// the identity, and that a secret with the same key makes it valid again, with all objects. A secret
// with another key gives nothing.
func TestTheSecretOfAnIdentityComesBack(t *testing.T) {
	t.Parallel()
	p, consumer := claiming(t, claimSecrets), newTenant(t)
	consumer.create(apiBindings, answering(p.name, acceptSecrets))
	uid := consumer.create(sharedWidgets, newWidget("w")).GetUID()
	consumer.secret("s", nil)
	keys := p.kube.CoreV1().Secrets("kcp-system")
	key := must(keys.Get(t.Context(), "widgets", metav1.GetOptions{}))(t)
	identity := text(must(p.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	works := func(when string) {
		t.Helper()
		pat := p.view("pat")
		if o, err := pat.widgets(consumer.name).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}); err != nil || o.GetUID() != uid {
			t.Errorf("%s: %v", when, err)
		}
		if list, err := pat.kube("*").CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("%s, the provider reads the secrets %v, %v", when, list, err)
		}
	}
	valid := func(want string) {
		t.Helper()
		e := p.until(apiExports, "widgets", "IdentityValid "+want)
		if got := text(e, "status", "identityHash"); got != identity {
			t.Errorf("the identity became %s", got)
		}
	}
	again := func(data map[string][]byte) {
		t.Helper()
		must(keys.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "widgets"}, Data: data}, metav1.CreateOptions{}))(t)
	}
	without := func() {
		t.Helper()
		if err := keys.Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		valid("False IdentityVerificationFailed")
	}
	without()
	p.merge(apiExports, "", "widgets", `{"spec":{"identity":null}}`)
	p.await(apiExports, "", "widgets", func(e *unstructured.Unstructured) bool {
		return text(e, "spec", "identity", "secretRef", "name") == "widgets"
	})
	valid("False IdentityVerificationFailed")
	if _, err := keys.Get(t.Context(), "widgets", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("another key is in the place of the lost one: %v", err)
	}
	again(map[string][]byte{"key": []byte("another")})
	valid("False IdentityVerificationFailed")
	without()
	again(key.Data)
	valid("True")
	works("after the secret came back")
	consumer.until(apiBindings, "widgets", "Ready True")

	// The export is made again after its secret, with the same key.
	p.without(apiExports, "widgets")
	if err := keys.Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again(key.Data)
	e := widgetExport("widgets", "v1")
	_ = unstructured.SetNestedField(e.Object, decoded("%s", claimSecrets).Object["claims"], "spec", "permissionClaims")
	p.create(apiExports, e)
	valid("True")
	consumer.until(apiBindings, "widgets", "Ready True")
	works("after the export was made again")
}
