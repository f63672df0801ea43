package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

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

// A hub plays the side of the workspaces. Its caches change only when a test says so.
type hub struct {
	assigned *watch.FakeWatcher
	kinds    Desired
	wake     chan func(kcp.Key)

	mu    sync.Mutex
	reads int                                                              // guarded by mu
	live  func() (*unstructured.Unstructured, *workload.Assignment, error) // guarded by mu
	said  []*workload.TargetStatus                                         // guarded by mu; nil for a deletion
}

func newKind[T kcp.Object](t *testing.T, name string, list runtime.Object, changes watch.Interface) *kcp.Kind[T] {
	k := kcp.NewKind[T](name, &cache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list, nil },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return changes, nil },
	}, nil)
	run(t, k.Run)
	return k
}

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); ended.Wait() })
}

func web() kcp.Key { return kcp.Key{Cluster: "tenant", Namespace: "default", Name: "web"} }

func webDeployment() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "default", "uid": "u1", "generation": int64(1), "resourceVersion": "1",
			"annotations": map[string]any{core.ClusterAnnotation: "tenant", "note": "kept"}, "labels": map[string]any{"app": "web"}},
		"spec": map[string]any{"replicas": int64(4), "paused": true}}}
}

// assignment returns the Assignment of web; targets are keys.
func assignment(targets ...string) *workload.Assignment {
	a := &workload.Assignment{}
	a.Name, a.Namespace, a.ResourceVersion = AssignmentName(Deployments().GroupResource(), "web"), "default", fmt.Sprint(1+len(targets))
	a.Annotations = map[string]string{core.ClusterAnnotation: "tenant"}
	a.Spec.Workload = Reference(webDeployment())
	for _, key := range targets {
		a.Spec.Targets = append(a.Spec.Targets, workload.AssignedTarget{Key: key, Phase: workload.Active, Replicas: new(int32(3))})
	}
	return a
}

func newHub(t *testing.T) *hub {
	h := &hub{assigned: watch.NewFakeWithChanSize(10, false), wake: make(chan func(kcp.Key), 1)}
	h.kinds = Desired{
		Workloads: newKind[*unstructured.Unstructured](t, "workloads", &unstructured.UnstructuredList{
			Object: map[string]any{"metadata": map[string]any{"resourceVersion": "1"}}, Items: []unstructured.Unstructured{*webDeployment()}}, watch.NewFake()),
		Assignments: newKind[*workload.Assignment](t, "assignments", &workload.AssignmentList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []workload.Assignment{*assignment("here", "there")}}, h.assigned),
		Reports:     newKind[*workload.TargetStatus](t, "reports", &workload.TargetStatusList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, watch.NewFake()),
		Wakes:       kcp.Source{Subscribe: func(wake func(kcp.Key)) func() { h.wake <- wake; return nil }},
		Read: func(context.Context, kcp.Key) (*unstructured.Unstructured, *workload.Assignment, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.reads++
			return h.live()
		},
		Report: func(_ context.Context, _ kcp.Key, _ string, report *workload.TargetStatus) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.said = append(h.said, report)
			return nil
		},
	}
	return h
}

// answer sets what the server says about web, and returns how often it was asked before.
func (h *hub) answer(w *unstructured.Unstructured, a *workload.Assignment, err error) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = func() (*unstructured.Unstructured, *workload.Assignment, error) { return w, a, err }
	return h.reads
}

func (h *hub) asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reads
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// A part is applied and reported. It is removed only when the server confirms that the target has none,
// whatever the caches say (rule I5 of the design).
func TestSync(t *testing.T) {
	c := kcptest.New(t)
	c.Apply(definition)
	h := newHub(t)
	e, err := New("here", c.Config, h.kinds)
	if err != nil {
		t.Fatal(err)
	}
	run(t, e.Run)
	wake := <-h.wake
	wake(web())
	from := Locator{Cluster: "tenant", Namespace: "default", Target: "here"}
	all := c.Dynamic.Resource(Deployments()).Namespace(from.namespace())
	get := func() *unstructured.Unstructured {
		o, err := all.Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if err != nil {
			return nil
		}
		return o
	}
	until(t, "the part is applied", func() bool { return get() != nil })
	applied(t, h, get())

	// The caches lose the part, but the server does not answer, or says that there is one.
	h.answer(nil, nil, errors.New("the server is away"))
	h.assigned.Modify(assignment("there"))
	until(t, "the cache has it", func() bool {
		return len(h.kinds.Assignments.Get(kcp.Key{Cluster: "tenant", Namespace: "default", Name: AssignmentName(Deployments().GroupResource(), "web")}).Spec.Targets) == 1
	})
	wake(web())
	until(t, "the server is asked", func() bool { return h.asked() >= 3 })
	before := h.answer(webDeployment(), assignment("here", "there"), nil)
	wake(web())
	until(t, "the server is asked", func() bool { return h.asked() > before })
	if o := get(); o == nil || o.GetDeletionTimestamp() != nil {
		t.Fatalf("removed without the word of the server: %v", o)
	}
	h.answer(webDeployment(), assignment("there"), nil)
	wake(web())
	until(t, "the part is removed", func() bool { return get() == nil })
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
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.said) > 1 && h.said[len(h.said)-1].Spec.Generation == 1 && *h.said[len(h.said)-1].Spec.Replicas == 3
	})
	if first := h.said[0]; first.Spec.Generation != 0 || first.OwnerReferences[0].UID != types.UID("u1") {
		t.Errorf("first report %+v", first)
	}
}

// Names of physical namespaces and of side objects are valid and differ, however long the names are.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 250)
	gr := Deployments().GroupResource()
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
