package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// definition makes a logical cluster play a physical one: it serves Deployments without fields.
const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: deployments.apps}
spec:
  group: apps
  names: {plural: deployments, singular: deployment, kind: Deployment, listKind: DeploymentList}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); ended.Wait() })
}

func deployments() schema.GroupResource {
	return schema.GroupResource{Group: "apps", Resource: "deployments"}
}

func configMaps() schema.GroupResource { return schema.GroupResource{Resource: "configmaps"} }

func web() ID {
	return ID{deployments(), kcp.Key{Cluster: "tenant", Namespace: "default", Name: "web"}}
}

func settings() ID { return web().Beside(configMaps(), "settings") }

func webDeployment() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "default", "uid": "u1", "generation": int64(1), "resourceVersion": "1",
			"annotations": map[string]any{core.ClusterAnnotation: "tenant", "note": "kept"}, "labels": map[string]any{"app": "web"}},
		"spec": map[string]any{"replicas": int64(4), "paused": true, "template": map[string]any{"spec": map[string]any{"containers": []any{
			map[string]any{"name": "x", "envFrom": []any{map[string]any{"configMapRef": map[string]any{"name": "settings"}}}}}}}}}}
}

func configMap(value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "settings", "namespace": "default"}, "data": map[string]any{"key": value}}}
}

// assignment returns the Assignment of web; targets are keys.
func assignment(targets ...string) *workload.Assignment {
	a := &workload.Assignment{}
	a.Name, a.Namespace = AssignmentName(deployments(), "web"), "default"
	a.Annotations = map[string]string{core.ClusterAnnotation: "tenant"}
	a.Spec.Workload = Reference(deployments(), webDeployment())
	for _, key := range targets {
		a.Spec.Targets = append(a.Spec.Targets, workload.AssignedTarget{Key: key, Phase: workload.Active, Replicas: new(int32(3))})
	}
	return a
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// A bench is an engine with a logical cluster that plays the physical one.
type bench struct {
	*hub
	*Engine
	wakeTask func(kcp.Key)
	at       string // the namespace in the physical cluster
	physical dynamic.Interface
}

func newBench(t *testing.T) *bench {
	c := kcptest.New(t)
	c.Apply(definition)
	return begin(t, c)
}

// begin starts an engine.
func begin(t *testing.T, c *kcptest.Cluster) *bench {
	h := &hub{wake: make(chan func(kcp.Key), 1), cached: assignment("here", "there"), settings: configMap("one")}
	h.answer(webDeployment(), assignment("here", "there"), nil)
	h.unused = func() (bool, error) { return false, errors.New("the server is away") }
	e, err := New("here", c.Config, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, e.Run)
	return &bench{h, e, <-h.wake, Locator{Cluster: "tenant", Namespace: "default", Target: "here"}.namespace(), c.Dynamic}
}

// get returns an object of the physical cluster, nil if there is none.
func (b *bench) get(t *testing.T, of schema.GroupResource, name string) *unstructured.Unstructured {
	t.Helper()
	o, err := b.physical.Resource(of.WithVersion("v1")).Namespace(b.at).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return o
}

// watched returns the kinds that the engine watches.
func (b *bench) watched() []string {
	b.Engine.mu.Lock()
	defer b.Engine.mu.Unlock()
	var all []string
	for of := range b.shelf {
		all = append(all, of.Resource)
	}
	slices.Sort(all)
	return all
}

// The engine applies a part with its dependencies, and reports it. It removes both only when the server
// confirms that the target has no part, whatever the caches say (rule I5 of the design), and then ends
// its watches.
func TestSync(t *testing.T) {
	b := newBench(t)
	if all := b.watched(); len(all) > 0 {
		t.Errorf("it watches %v though the target has nothing", all)
	}
	b.wakeTask(web().Task())
	until(t, "the part is applied", func() bool { return b.get(t, deployments(), "web") != nil })
	applied(t, b.hub, b.get(t, deployments(), "web"))
	if o := b.get(t, configMaps(), "settings"); o == nil {
		t.Error("the ConfigMap is not there")
	}
	if all := b.watched(); !slices.Equal(all, []string{"configmaps", "deployments"}) {
		t.Errorf("it watches %v", all)
	}

	// The cache has no workload, though it has its Assignment, and the server has both.
	before := b.asked()
	locked(b.hub, func() any { b.lost = true; return nil })
	b.wakeTask(web().Task())
	until(t, "the server is asked", func() bool { return b.asked() > before })
	if o := b.get(t, deployments(), "web"); o == nil || o.GetDeletionTimestamp() != nil {
		t.Fatalf("removed without the word of the server: %v", o)
	}
	locked(b.hub, func() any { b.lost = false; return nil })

	// The caches lose the part, but the server does not answer, or says that there is one.
	b.answer(nil, nil, errors.New("the server is away"))
	locked(b.hub, func() any { b.cached = assignment("there"); return nil })
	before = b.asked()
	b.wakeTask(web().Task())
	b.wakeTask(settings().Task())
	until(t, "the server is asked", func() bool { return b.asked() >= before+2 })
	before = b.answer(webDeployment(), assignment("here", "there"), nil)
	b.wakeTask(web().Task())
	until(t, "the server is asked", func() bool { return b.asked() > before })
	if o := b.get(t, deployments(), "web"); o == nil || o.GetDeletionTimestamp() != nil {
		t.Fatalf("removed without the word of the server: %v", o)
	}
	// The Assignment is lost, not the workload: the scheduler makes it anew.
	before = b.answer(webDeployment(), nil, nil)
	b.wakeTask(web().Task())
	until(t, "the server is asked", func() bool { return b.asked() > before })
	if o := b.get(t, deployments(), "web"); o == nil || o.GetDeletionTimestamp() != nil {
		t.Fatalf("removed without an Assignment: %v", o)
	}
	b.answer(webDeployment(), assignment("there"), nil)
	b.wakeTask(web().Task())
	until(t, "the part is removed", func() bool { return b.get(t, deployments(), "web") == nil })
	if o := b.get(t, configMaps(), "settings"); o == nil || o.GetDeletionTimestamp() != nil {
		t.Fatalf("removed without the word of the server: %v", o)
	}
	locked(b.hub, func() any { b.unused = func() (bool, error) { return true, nil }; return nil })
	b.wakeTask(settings().Task())
	until(t, "the ConfigMap is removed", func() bool { return b.get(t, configMaps(), "settings") == nil })
	until(t, "nothing is watched", func() bool { return len(b.watched()) == 0 })
}

// The report about a copy that is being deleted, by whomever, does not say that it runs.
func TestDeletedCopy(t *testing.T) {
	b := newBench(t)
	b.wakeTask(web().Task())
	until(t, "the part is applied", func() bool { return b.get(t, deployments(), "web") != nil })
	all := b.physical.Resource(deployments().WithVersion("v1")).Namespace(b.at)
	patch := func(text string, subresources ...string) {
		t.Helper()
		if _, err := all.Patch(t.Context(), "web", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...); err != nil {
			t.Fatal(err)
		}
	}
	reported := func(observed bool) func() bool {
		return func() bool {
			return locked(b.hub, func() bool {
				return b.report != nil && b.report.Spec.Observed == observed && b.report.Spec.Reported != nil && *b.report.Spec.Replicas == 3
			})
		}
	}
	patch(`{"status":{"observedGeneration":99,"availableReplicas":3}}`, "status")
	until(t, "the report", reported(true))
	patch(`{"metadata":{"finalizers":["example.com/slow"]}}`)
	if err := all.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the report about the deletion", reported(false))
	before := b.get(t, deployments(), "web").GetUID()
	patch(`{"metadata":{"finalizers":null}}`)
	until(t, "the part is applied anew", func() bool { o := b.get(t, deployments(), "web"); return o != nil && o.GetUID() != before })
}

// The engine finds the copies that became superfluous while the server was away, also of kinds without
// any assigned object. It removes them once the server confirms that they are superfluous.
func TestLeftovers(t *testing.T) {
	c := kcptest.New(t)
	c.Apply(definition)
	from := Locator{Cluster: "tenant", Namespace: "default", Target: "here"}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": from.namespace()}}}
	if _, err := c.Dynamic.Resource(namespaces()).Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for of, w := range map[schema.GroupResource]*unstructured.Unstructured{deployments(): webDeployment(), configMaps(): configMap("old")} {
		o, err := desired((&hub{}).Profile(of), w, nil, from)
		if err != nil {
			t.Fatal(err)
		}
		o.SetName("left")
		if _, err := c.Dynamic.Resource(of.WithVersion("v1")).Namespace(from.namespace()).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b := begin(t, c)
	b.answer(nil, nil, nil)
	locked(b.hub, func() any { b.unused = func() (bool, error) { return true, nil }; return nil })
	for _, of := range []schema.GroupResource{deployments(), configMaps()} {
		until(t, "the end of what was left", func() bool { return b.get(t, of, "left") == nil })
	}
}

// A dependency follows its original, and goes with it.
func TestFollow(t *testing.T) {
	b := newBench(t)
	b.wakeTask(web().Task())
	value := func() string {
		o := b.get(t, configMaps(), "settings")
		if o == nil {
			return ""
		}
		text, _, _ := unstructured.NestedString(o.Object, "data", "key")
		return text
	}
	until(t, "the copy", func() bool { return value() == "one" })
	locked(b.hub, func() any { b.settings = configMap("two"); return nil })
	b.wakeTask(settings().Task())
	until(t, "the update", func() bool { return value() == "two" })
	patch := []byte(`{"data":{"key":"drift"}}`)
	if _, err := b.physical.Resource(configMaps().WithVersion("v1")).Namespace(b.at).Patch(t.Context(), "settings", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the repair", func() bool { return value() == "two" })
	locked(b.hub, func() any { b.settings = nil; return nil })
	b.wakeTask(settings().Task())
	until(t, "the end", func() bool { return b.get(t, configMaps(), "settings") == nil })
	until(t, "the report", func() bool {
		return locked(b.hub, func() bool { return b.report != nil && len(b.report.Spec.Missing) == 1 })
	})
}

// applied checks the object in the physical cluster, and the reports about it.
func applied(t *testing.T, h *hub, o *unstructured.Unstructured) {
	t.Helper()
	replicas, _, err := unstructured.NestedInt64(o.Object, "spec", "replicas")
	paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused")
	if err != nil || replicas != 3 || !paused || o.GetLabels()["app"] != "web" || o.GetLabels()[workload.OwnerLabel] != "here" || o.GetAnnotations()["note"] != "kept" {
		t.Errorf("applied %v", o)
	}
	until(t, "the report", func() bool {
		return locked(h, func() bool {
			return len(h.said) > 1 && h.said[len(h.said)-1].Spec.Generation == 1 && *h.said[len(h.said)-1].Spec.Replicas == 3
		})
	})
	if first := locked(h, func() *workload.TargetStatus { return h.said[0] }); first.Spec.Generation != 0 || first.Spec.Workload.UID != "u1" || len(first.OwnerReferences) > 0 {
		t.Errorf("first report %+v", first)
	}
}

// A tenant whose objects carry the marks of the engine gains nothing: neither do their copies have them
// in templates, nor does the engine take an object elsewhere for that of another tenant.
func TestForgedMarks(t *testing.T) {
	w := webDeployment()
	forged := map[string]any{"labels": map[string]any{workload.OwnerLabel: "here", "app": "x"}, "annotations": map[string]any{workload.LocatorAnnotation: "{}"}}
	if err := unstructured.SetNestedField(w.Object, []any{map[string]any{"metadata": forged}}, "spec", "volumeClaimTemplates"); err != nil {
		t.Fatal(err)
	}
	w.SetLabels(map[string]string{workload.OwnerLabel: "there"})
	from := Locator{Cluster: "tenant", Namespace: "default", Target: "here"}
	o, err := desired((&hub{}).Profile(deployments()), w, nil, from)
	if err != nil || o.GetLabels()[workload.OwnerLabel] != "here" || strings.Contains(fmt.Sprint(o.Object["spec"]), "workload.kcp.io") || strings.Contains(fmt.Sprint(o.Object["spec"]), "kcp.io/") {
		t.Errorf("%v, %v", o, err)
	}

	b := newBench(t)
	b.wakeTask(web().Task())
	until(t, "the part is applied", func() bool { return b.get(t, deployments(), "web") != nil })
	fake := b.get(t, deployments(), "web")
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "attacker"}}}
	if _, err := b.physical.Resource(namespaces()).Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fake.SetNamespace("attacker")
	fake.SetResourceVersion("")
	fake.SetUID("")
	all := b.physical.Resource(deployments().WithVersion("v1")).Namespace("attacker")
	made, err := all.Create(t.Context(), fake, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	victim := b.get(t, deployments(), "web")
	if err := all.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil || made.GetGeneration() != 1 {
		t.Fatal(err, made.GetGeneration())
	}
	b.wakeTask(web().Task())
	before := b.asked()
	b.answer(webDeployment(), assignment("there"), nil)
	locked(b.hub, func() any { b.cached = assignment("there"); return nil })
	b.wakeTask(web().Task())
	until(t, "the part is removed, after a question", func() bool { return b.get(t, deployments(), "web") == nil && b.asked() > before })
	if victim.GetDeletionTimestamp() != nil || victim.GetGeneration() != 1 {
		t.Errorf("%v", victim)
	}
}

// A task names an object of any kind.
func TestTasks(t *testing.T) {
	for _, id := range []ID{web(), settings(), web().Beside(schema.GroupResource{Group: "a.b.example.com", Resource: "things"}, "x.y")} {
		if got := IDOf(id.Task()); got != id {
			t.Errorf("%v, want %v", got, id)
		}
	}
}

// Names of physical namespaces and of side objects are valid and differ, however long the names are.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 250)
	gr := deployments()
	for _, name := range []string{"user:alice@example.com", "Web", "a b"} {
		if of := AssignmentName(gr, name); len(validation.IsDNS1123Subdomain(of)) > 0 {
			t.Errorf("the Assignment of %q has the name %q", name, of)
		}
	}
	if AssignmentName(gr, long+"1") == AssignmentName(gr, long+"2") || len(StatusName(gr, long, TargetKey("c", "n", "u"))) > 253 {
		t.Error("names of side objects")
	}
	one, other := Locator{"a", "b", "c"}, Locator{"a", "bc", ""}
	if one.namespace() == other.namespace() || len(one.namespace()) > 63 || TargetKey("a", "b", "c") == TargetKey("a", "bc", "") {
		t.Error("names of namespaces")
	}
}

// A tenant learns that the agent may not write, but not as whom it writes.
func TestRefusalsNameNoUser(t *testing.T) {
	t.Parallel()
	of := schema.GroupResource{Group: "apps", Resource: "deployments"}
	byRBAC := apierrors.NewForbidden(of, "web", errors.New(`User "system:serviceaccount:ops:agent" cannot patch resource "deployments"`))
	if text := refusal(byRBAC); text == "" || strings.Contains(text, "ops") {
		t.Errorf("the tenant reads %q", text)
	}
	byQuota := apierrors.NewForbidden(of, "web", errors.New("exceeded quota: apps"))
	if text := refusal(byQuota); text != byQuota.Error() {
		t.Errorf("the tenant reads %q", text)
	}
}

// Pods have no credentials of the physical cluster, whatever their template says.
func TestPodsHaveNoTokens(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]any{"nothing": nil, "no": false, "yes": true} {
		w := webDeployment()
		pod := map[string]any{"containers": []any{}, "volumes": []any{map[string]any{"name": "all", "projected": map[string]any{"sources": []any{
			map[string]any{"serviceAccountToken": map[string]any{"path": "token"}}, map[string]any{"podCertificate": map[string]any{}},
			map[string]any{"configMap": map[string]any{"name": "kept"}}}}}}}
		if says != nil {
			pod[automount] = says
		}
		w.Object["spec"] = map[string]any{"template": map[string]any{"spec": pod}}
		o, err := desired((&hub{}).Profile(deployments()), w, nil, Locator{Cluster: "tenant", Namespace: "default", Target: "t"})
		if err != nil {
			t.Fatal(err)
		}
		spec, _, err := unstructured.NestedMap(o.Object, "spec", "template", "spec")
		text, err2 := json.Marshal(spec)
		if err != nil || err2 != nil || spec[automount] != false || strings.Contains(string(text), "oken\":{") || strings.Contains(string(text), "podCertificate") || !strings.Contains(string(text), "kept") {
			t.Errorf("a template that says %s: %s, %v", name, text, err)
		}
	}
}
