package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/keys"
)

// stored returns the number of objects of a definition in etcd.
func (c *tenant) stored(d *definition) int64 {
	c.t.Helper()
	return must(c.server.Store().Count(c.t.Context(), c.name, keys.CustomResource(resourceOf(d).GroupResource(), "")))(c.t)
}

// undefined waits until a definition and all its objects are deleted.
func (c *tenant) undefined(d *definition) {
	c.t.Helper()
	c.await(definitions, "", d.Name, gone)
	if n := c.stored(d); n != 0 {
		c.t.Errorf("%d objects are left of %s", n, d.Name)
	}
	now := must(c.server.Store().RawClient().Get(c.t.Context(), "now"))(c.t).Header.Revision
	if err := c.server.Store().Feed().WaitFor(c.t.Context(), now); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.of(d).List(c.t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("%s is served after its end: %v", d.Name, err)
	}
}

// A definition in deletion is deleted after all its objects, including those with finalizers.
// No new objects can be created meanwhile.
func TestDefinitionsGoWithTheirObjects(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	other.newKind(crd(t, "widgets"))
	other.instance(d, "elsewhere")
	c.namespace("n")
	for i := range 3 {
		c.instance(d, fmt.Sprint("o", i))
		must(c.any.Resource(resourceOf(d)).Namespace("n").Create(t.Context(), instance(d, "o"+fmt.Sprint(i)), metav1.CreateOptions{}))(t)
	}
	c.instance(d, "held", "metadata: {finalizers: ["+hold+"]}")
	w := must(c.of(d).Watch(t.Context(), metav1.ListOptions{}))(t)
	c.undefine(d.Name)
	for seen := map[string]bool{}; len(seen) < 3; { // those without finalizers in the namespace default
		if e := next(t, w); e.Type == "DELETED" {
			seen[e.Object.(*unstructured.Unstructured).GetName()] = true
		}
	}
	c.untilTold(d.Name, apiextensionsv1.Terminating, "True", "default/held is kept by finalizers ["+hold+"]")
	const text = `create not allowed while custom resource definition is terminating`
	_, err := c.of(d).Create(t.Context(), instance(d, "late"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
		t.Errorf("created while it is deleted: %v", err)
	}
	if _, err := c.of(d).Apply(t.Context(), "late", instance(d, "late"), metav1.ApplyOptions{FieldManager: "m"}); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("applied while it is deleted: %v", err)
	}
	all := must(must(discovery.NewDiscoveryClientForConfig(c.config()))(t).ServerResourcesForGroupVersion("example.com/v1"))(t)
	if len(all.APIResources) != 1 || strings.Contains(fmt.Sprint(all.APIResources[0].Verbs), "create") || !strings.Contains(fmt.Sprint(all.APIResources[0].Verbs), "delete") {
		t.Errorf("discovery says %v", all.APIResources)
	}
	must(c.of(d).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"spec":{"still":1}}`), metav1.PatchOptions{}))(t)
	must(c.of(d).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
	c.undefined(d)
	for range w.ResultChan() { // until the watch ends
	}
	if _, err := other.of(d).Get(t.Context(), "elsewhere", metav1.GetOptions{}); err != nil {
		t.Errorf("what another cluster has: %v", err)
	}
}

// A definition with unreadable objects is not deleted, because these may have finalizers. A
// forced deletion removes only corrupt objects.
func TestUnreadableObjectsKeepADefinition(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	c.instance(d, "good")
	at := fmt.Sprintf("/registry/c/example.com/widgets/-/%s/default/", c.name)
	put := func(name, value string) { must(c.server.Store().RawClient().Put(t.Context(), at+name, value))(t) }
	put("sealed", keyIsAway)
	put("nonsense", "nonsense")
	c.undefine(d.Name)
	c.untilTold(d.Name, apiextensionsv1.Terminating, "True", "2 left, of which default/")
	patch := []byte(`{"metadata":{"annotations":{"` + forceDelete + `":"ticket 42"}}}`)
	force := func(c *tenant) error {
		_, err := c.any.Resource(definitions).Patch(t.Context(), d.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if err := force(c.allow("alice")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "operators") {
		t.Errorf("forced by its owner: %v", err)
	}
	if err := force(c); err != nil {
		t.Fatal(err)
	}
	c.untilTold(d.Name, apiextensionsv1.Terminating, "True", "1 left, of which default/sealed cannot be read: ")
	put("sealed", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"namespace":"default","name":"sealed","uid":"1","finalizers":["`+hold+`"]}}`)
	c.untilTold(d.Name, apiextensionsv1.Terminating, "True", "default/sealed is kept by finalizers ["+hold+"]")
	must(c.of(d).Patch(t.Context(), "sealed", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
	c.undefined(d)
}

// A definition that was never served is deleted without a wait.
func TestOddDefinitionsGo(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	c.instance(d, "good")
	never := c.newKind(crd(t, "others", "spec: {names: {kind: Widget}}"))
	if !conditionIs(never, apiextensionsv1.Established, "False") {
		t.Errorf("%+v", never.Status)
	}
	c.undefine(never.Name)
	c.undefined(never)
	if n := c.stored(d); n != 1 {
		t.Errorf("%d are stored", n)
	}
	c.undefine(d.Name)
	c.undefined(d)
}

// Thousands of objects are deleted, including ones created concurrently. A new definition of
// the same name has no objects.
func TestNothingIsLeftOfADefinition(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := crd(t, "widgets")
	d.Spec.Scope = apiextensionsv1.ClusterScoped
	writers, objects := 8, size(600, 2_000)
	for round := range 3 {
		d := c.newKind(d)
		var wg, begun sync.WaitGroup
		begun.Add(writers)
		for i := range writers {
			wg.Go(func() {
				started := sync.OnceFunc(begun.Done)
				for n := 0; ; n++ {
					if round == 0 && n >= objects/writers || n > 20 && round > 0 {
						started()
					}
					_, err := c.of(d).Create(t.Context(), instance(d, fmt.Sprintf("o%d-%d", i, n)), metav1.CreateOptions{})
					switch {
					case err == nil:
					case apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsTooManyRequests(err):
						started()
						return
					default:
						t.Errorf("round %d: %v", round, err)
						started()
						return
					}
				}
			})
		}
		begun.Wait()
		c.undefine(d.Name)
		wg.Wait()
		c.undefined(d)
	}
	again := crd(t, "widgets", schemaOf("{type: object, required: [spec], properties: {spec: {type: integer}}}"))
	c.newKind(again)
	if l := must(c.of(again).List(t.Context(), metav1.ListOptions{}))(t); len(l.Items) != 0 {
		t.Errorf("a new definition has %d old objects", len(l.Items))
	}
	c.instance(again, "o", "spec: 1")
}

// Definitions that are deleted in a collection, by label or by the garbage collector take
// their objects with them, too.
func TestWaysToDeleteDefinitions(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	absent := fmt.Sprintf(`metadata: {ownerReferences: [{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, name: never-was, uid: %s}]}`, types.UID("u-"+c.name))
	selected := c.newKind(crd(t, "selecteds", "metadata: {labels: {go: away}}"))
	stays := c.newKind(crd(t, "stays"))
	garbage := crd(t, "garbages", absent)
	for _, d := range []*definition{selected, stays} {
		c.instance(d, "o")
		c.instance(d, "p")
	}
	if err := c.crds().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "go=away"}); err != nil {
		t.Fatal(err)
	}
	c.undefined(selected)
	if n := c.stored(stays); n != 2 {
		t.Errorf("%d objects of another definition are left", n)
	}
	owned := c.newKind(crd(t, "owneds"))
	c.instance(owned, "o")
	must(c.redefine(owned.Name, absent))(t)
	c.undefined(owned)
	c.newKind(garbage)
	c.undefined(garbage)
	if err := c.crds().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	c.undefined(stays)
}

// After a restart, definitions are served without delay and deletions continue.
func TestDefinitionsAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	c := fresh(t, s)
	d, held := c.newKind(crd(t, "widgets")), c.newKind(crd(t, "helds"))
	waiting := c.newKind(crd(t, "waitings", "spec: {names: {kind: Held, listKind: HeldList}}"))
	for i := range 300 {
		c.instance(d, fmt.Sprint("o", i))
	}
	c.instance(held, "o", "metadata: {finalizers: ["+hold+"]}")
	many := make([]*definition, 30)
	for i := range many {
		many[i] = c.newKind(crd(t, fmt.Sprint("manys", i)))
		c.instance(many[i], "o")
	}
	c.undefine(held.Name)
	c.undefine(d.Name)
	s.Close() // during the deletion
	s = start(t, dir)
	defer func() { s.Close() }()
	c = at(t, s, c.name, server.System())
	for _, d := range many {
		if _, err := c.of(d).Get(t.Context(), "o", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	c.undefined(d)
	c.untilTold(held.Name, apiextensionsv1.Terminating, "True", hold)
	s.Close()
	s = start(t, dir)
	c = at(t, s, c.name, server.System())
	must(c.of(held).Patch(t.Context(), "o", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
	c.undefined(held)
	c.untilTold(waiting.Name, apiextensionsv1.Established, "True", "") // the name is free now
	c.instance(waiting, "o")
}

// The deletion of a workspace deletes definitions and their objects. A finalizer of an object
// delays it. No new definitions can be created.
func TestDefinitionsInADeletedWorkspace(t *testing.T) {
	t.Parallel()
	top := newTenant(t)
	c := top.workspace("w")
	d := c.newKind(crd(t, "widgets"))
	c.instance(d, "o")
	c.instance(d, "held", "metadata: {finalizers: ["+hold+"]}")
	c.newKind(crd(t, "others", "metadata: {finalizers: ["+hold+"]}"))
	c.instance(c.pods(), "of-the-core-group")
	top.deleteWorkspace("w")
	c.says(logicalClusters, "cluster", hold)
	if _, err := c.crds().Create(t.Context(), crd(t, "lates"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("defined in a workspace that is deleted: %v", err)
	}
	if _, err := c.of(d).Create(t.Context(), instance(d, "late"), metav1.CreateOptions{}); err == nil {
		t.Error("created in a workspace that is deleted")
	}
	must(c.of(d).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))(t)
	must(c.redefine("others.example.com", "metadata: {finalizers: null}"))(t)
	top.ended("w", c.name)
}

// Custom resources can own other objects and be owned, also by kinds that are defined later.
// They are deleted with their namespace.
func TestCustomResourcesAreCollected(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	ref := func(d *definition, o *unstructured.Unstructured) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: o.GetAPIVersion(), Kind: d.Spec.Names.Kind, Name: o.GetName(), UID: o.GetUID()}
	}
	early := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Later", Name: "never-was", UID: types.UID("u-" + c.name)}
	c.configMap("of-later", early)
	d := c.newKind(crd(t, "widgets"))
	top := c.instance(d, "top")
	below := instance(d, "below")
	below.SetOwnerReferences([]metav1.OwnerReference{ref(d, top)})
	below = must(c.of(d).Create(t.Context(), below, metav1.CreateOptions{}))(t)
	c.configMap("lowest", ref(d, below))
	owned := instance(d, "owned")
	owner := c.configMap("owner")
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}})
	must(c.of(d).Create(t.Context(), owned, metav1.CreateOptions{}))(t)
	c.caughtUp()
	c.stays("of-later")
	c.stays("lowest")
	if err := c.of(d).Delete(t.Context(), "top", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitConfigMap("lowest", gone)
	c.await(resourceOf(d), "default", "below", gone)
	c.delete("owner", metav1.DeletePropagationBackground)
	c.await(resourceOf(d), "default", "owned", gone)
	c.newKind(crd(t, "laters"))
	c.awaitConfigMap("of-later", gone)

	c.namespace("n")
	c.instance(d, "stays")
	in := c.any.Resource(resourceOf(d)).Namespace("n")
	must(in.Create(t.Context(), instance(d, "goes"), metav1.CreateOptions{}))(t)
	if err := c.kube.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", gone)
	if n := c.stored(d); n != 1 {
		t.Errorf("%d objects are left", n)
	}
}

// A create that was admitted under one definition is decided again or refused if the
// definition has changed or is deleted.
func TestCreationsDependOnTheirDefinition(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets"))
	late := func(name string, meanwhile func()) error {
		held, done := c.hold(name), make(chan error)
		go func() {
			_, err := c.of(d).Create(t.Context(), instance(d, name, "spec: text"), metav1.CreateOptions{})
			done <- err
		}()
		<-held.reached
		meanwhile()
		close(held.release)
		return <-done
	}
	if err := late("labelled", func() { must(c.redefine(d.Name, "metadata: {labels: {a: b}}"))(t) }); err != nil {
		t.Errorf("admitted by the same schema: %v", err)
	}
	if err := late("changed", func() { must(c.redefine(d.Name, schemaOf("{type: object, properties: {spec: {type: integer}}}")))(t) }); !apierrors.IsInvalid(err) {
		t.Errorf("admitted by a schema that is no more: %v", err)
	}
	must(c.redefine(d.Name, schemaOf("{type: object, x-kubernetes-preserve-unknown-fields: true}")))(t)
	if err := late("deleted", func() { c.undefine(d.Name); c.undefined(d) }); !apierrors.IsNotFound(err) {
		t.Errorf("admitted by a definition that has gone: %v", err)
	}
	c.undefined(d)
}
