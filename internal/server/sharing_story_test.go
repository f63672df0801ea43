package server_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// A story is a provider and a consumer whose life is interrupted by crashes. Its steps can be
// repeated by the next server.
type story struct {
	provider, consumer, other *tenant
	uids                      map[string]types.UID // of objects when they were made
}

// The clusters of a story have the same names in all processes.
const (
	storyProvider cluster.Name = "story-provider"
	storyConsumer cluster.Name = "story-consumer"
	storyOther    cluster.Name = "story-other"
)

func storyClusters() []cluster.Name { return []cluster.Name{storyProvider, storyConsumer, storyOther} }

// storyOn returns the story on a server.
func storyOn(t *testing.T, s *running, uids map[string]types.UID) *story {
	t.Helper()
	return &story{at(t, s, storyProvider, server.System()), at(t, s, storyConsumer, server.System()), at(t, s, storyOther, server.System()), uids}
}

// A storyStep is a request of a client, and the state that follows. A client whose request was
// interrupted repeats it.
type storyStep struct {
	name string
	do   func(*story)
}

// again creates an object that may exist.
func (c *tenant) again(r schema.GroupVersionResource, o *unstructured.Unstructured) {
	c.t.Helper()
	client := c.any.Resource(r).Namespace("")
	if r == sharedWidgets {
		client = c.any.Resource(r).Namespace("default")
	}
	if _, err := client.Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
}

// without deletes an object that may be gone.
func (c *tenant) without(r schema.GroupVersionResource, name string) {
	c.t.Helper()
	if err := c.any.Resource(r).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
}

// merge patches an object.
func (c *tenant) merge(r schema.GroupVersionResource, namespace, name, patch string) *unstructured.Unstructured {
	c.t.Helper()
	return must(c.any.Resource(r).Namespace(namespace).Patch(c.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(c.t)
}

// until waits until an object has a condition, as "type status reason", and all words in its status.
func (c *tenant) until(r schema.GroupVersionResource, name, condition string, words ...string) *unstructured.Unstructured {
	c.t.Helper()
	of, want, _ := strings.Cut(condition, " ")
	return c.await(r, "", name, func(o *unstructured.Unstructured) bool {
		return o != nil && (condition == "" || conditionOf(o, of) == want) && containsAll(fmt.Sprint(o.Object["status"]), words)
	})
}

// serves fails the test unless widgets are served in the cluster. It waits until they are not any more.
func (c *tenant) serves(want bool) {
	c.t.Helper()
	list := func() error {
		_, err := c.any.Resource(sharedWidgets).Namespace("default").List(c.t.Context(), metav1.ListOptions{})
		return err
	}
	if want {
		if err := list(); err != nil {
			c.t.Errorf("widgets are not served: %v", err)
		}
		return
	}
	eventually(c.t, "widgets are not served any more", func() bool { return apierrors.IsNotFound(list()) })
}

// kept is the workspace of the story whose type has default bindings.
func (s *story) kept() *tenant {
	s.provider.t.Helper()
	ws := must(s.provider.any.Resource(workspaces).Get(s.provider.t.Context(), "kept", metav1.GetOptions{}))(s.provider.t)
	return at(s.provider.t, s.provider.server, clusterOf(ws), server.System())
}

func (s *story) defaultBinding() (*tenant, string) {
	kept := s.kept()
	return kept, apisv1alpha2.DefaultBindingName(string(kept.name), string(storyProvider), "widgets")
}

const viewPath = "/services/apiexport/"

// sharingStory has all procedures that bind, change and unbind.
var sharingStory = []storyStep{
	{"schemas", func(s *story) {
		s.provider.again(apiSchemas, widgetSchema("v1", "color"))
		s.provider.again(apiSchemas, widgetSchema("v2", "shape"))
	}},
	{"export", func(s *story) {
		s.provider.again(apiExports, widgetExport("widgets", "v1"))
		s.provider.until(apiExports, "widgets", "IdentityValid True")
		s.provider.await(apiSlices, "", "widgets", there)
	}},
	{"bind", func(s *story) {
		s.consumer.again(apiBindings, bindingTo("b", storyProvider, "widgets"))
		s.consumer.until(apiBindings, "b", "Ready True")
		s.provider.until(apiSlices, "widgets", "", viewPath)
		s.consumer.serves(true)
	}},
	{"objects", func(s *story) {
		s.consumer.again(sharedWidgets, newWidget("w"))
		held := newWidget("held")
		held.SetFinalizers([]string{"example.com/hold"})
		s.consumer.again(sharedWidgets, held)
		for _, name := range []string{"w", "held"} {
			s.uids[name] = must(s.consumer.any.Resource(sharedWidgets).Namespace("default").Get(s.consumer.t.Context(), name, metav1.GetOptions{}))(s.consumer.t).GetUID()
		}
	}},
	{"another schema", func(s *story) {
		s.provider.merge(apiExports, "", "widgets", `{"spec":{"resources":[{"group":"example.com","name":"widgets","schema":"v2.widgets.example.com","storage":{"crd":{}}}]}}`)
		s.consumer.until(apiBindings, "b", "Ready True", "v2.widgets.example.com")
		s.same("w", "held")
	}},
	{"claim", func(s *story) {
		s.provider.merge(apiExports, "", "widgets", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get","list"]}]}}`)
		s.consumer.until(apiBindings, "b", "Ready True", "exportPermissionClaims")
	}},
	{"acceptance", func(s *story) {
		s.consumer.merge(apiBindings, "", "b", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get","list"],"state":"Accepted","selector":{"matchAll":true}}]}}`)
		s.consumer.until(apiBindings, "b", "Ready True", "appliedPermissionClaims")
		s.reads(true)
	}},
	{"rejection", func(s *story) {
		s.consumer.merge(apiBindings, "", "b", `{"spec":{"permissionClaims":[{"resource":"secrets","verbs":["get","list"],"state":"Rejected","selector":{"matchAll":true}}]}}`)
		s.reads(false)
		s.consumer.await(apiBindings, "", "b", func(o *unstructured.Unstructured) bool {
			return conditionOf(o, "Ready") == "True" && !containsAll(fmt.Sprint(o.Object["status"]), []string{"appliedPermissionClaims"})
		})
	}},
	{"another export of the identity", func(s *story) {
		next := widgetExport("next", "v2")
		_ = unstructured.SetNestedStringMap(next.Object, map[string]string{"namespace": "kcp-system", "name": "widgets"}, "spec", "identity", "secretRef")
		s.provider.again(apiExports, next)
		s.provider.await(apiSlices, "", "next", there)
	}},
	{"conflict", func(s *story) {
		s.consumer.again(apiBindings, bindingTo("new", storyProvider, "next"))
		s.consumer.until(apiBindings, "new", "InitialBindingCompleted False NamingConflicts")
	}},
	{"adoption", func(s *story) {
		s.consumer.without(apiBindings, "b")
		s.consumer.await(apiBindings, "", "b", gone)
		s.consumer.until(apiBindings, "new", "Ready True")
		s.provider.until(apiSlices, "next", "", viewPath)
		s.provider.await(apiSlices, "", "widgets", func(o *unstructured.Unstructured) bool {
			return !containsAll(fmt.Sprint(o.Object["status"]), []string{viewPath})
		})
		s.same("w", "held")
	}},
	{"workspace", func(s *story) {
		s.provider.again(workspaceTypes, decoded(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: kept}, spec: {defaultAPIBindingLifecycle: Maintain, extend: {with: [{name: universal, path: root}]}}}`))
		s.provider.again(workspaces, of("kept", "", "kept"))
		s.provider.await(workspaces, "", "kept", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
		s.kept().until(logicalClusters, "cluster", "APIBindingsInitialized True")
	}},
	{"default binding", func(s *story) {
		s.provider.merge(workspaceTypes, "", "kept", `{"spec":{"defaultAPIBindings":[{"export":"widgets","path":"`+string(storyProvider)+`"}]}}`)
		kept, name := s.defaultBinding()
		s.uids[name] = kept.until(apiBindings, name, "Ready True").GetUID()
		kept.until(logicalClusters, "cluster", "APIBindingsReconciled True")
		s.provider.until(apiSlices, "widgets", "", viewPath)
	}},
	{"maintenance", func(s *story) {
		kept, name := s.defaultBinding()
		if o, err := kept.any.Resource(apiBindings).Get(kept.t.Context(), name, metav1.GetOptions{}); err == nil && o.GetUID() == s.uids[name] {
			kept.without(apiBindings, name)
		}
		kept.await(apiBindings, "", name, func(o *unstructured.Unstructured) bool {
			return o != nil && o.GetUID() != s.uids[name] && conditionOf(o, "Ready") == "True"
		})
		kept.until(logicalClusters, "cluster", "APIBindingsReconciled True")
		s.provider.until(apiSlices, "widgets", "", viewPath)
	}},
	{"unbinding", func(s *story) {
		s.consumer.without(apiBindings, "new")
		s.consumer.until(apiBindings, "new", "BindingResourceDeleteSuccess False SomeFinalizersRemain", "default/held")
		if _, err := s.consumer.any.Resource(sharedWidgets).Namespace("default").Create(s.consumer.t.Context(), newWidget("late"), metav1.CreateOptions{}); err == nil {
			s.consumer.t.Error("an object was created during the deletion of its binding")
		}
	}},
	{"last object", func(s *story) {
		if _, err := s.consumer.any.Resource(sharedWidgets).Namespace("default").Patch(s.consumer.t.Context(), "held", types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.consumer.t.Fatal(err)
		}
		s.consumer.await(apiBindings, "", "new", gone)
		s.consumer.serves(false)
		s.provider.await(apiSlices, "", "next", func(o *unstructured.Unstructured) bool {
			return !containsAll(fmt.Sprint(o.Object["status"]), []string{viewPath})
		})
	}},
	{"another key", func(s *story) {
		s.provider.merge(core("secrets"), "kcp-system", "widgets", `{"data":{"key":"b3RoZXI="}}`)
		for _, name := range []string{"widgets", "next"} {
			s.provider.until(apiExports, name, "IdentityValid False IdentityVerificationFailed")
		}
		s.kept().serves(true)
	}},
	{"lost key", func(s *story) {
		if err := s.provider.kube.CoreV1().Secrets("kcp-system").Delete(s.provider.t.Context(), "widgets", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.provider.t.Fatal(err)
		}
		for _, name := range []string{"widgets", "next"} {
			s.provider.until(apiExports, name, "IdentityValid False IdentityVerificationFailed", "is missing")
		}
		s.kept().serves(true)
	}},
	{"end", func(s *story) {
		if _, err := s.provider.any.Resource(workspaces).Get(s.provider.t.Context(), "kept", metav1.GetOptions{}); err == nil {
			s.provider.without(workspaces, "kept")
			s.provider.await(workspaces, "", "kept", gone)
		}
		s.provider.without(workspaceTypes, "kept")
		for _, name := range []string{"widgets", "next"} {
			s.provider.without(apiExports, name)
			s.provider.await(apiSlices, "", name, gone)
		}
		for _, name := range []string{"v1", "v2"} {
			s.provider.without(apiSchemas, name+".widgets.example.com")
		}
	}},
}

// same fails the test unless widgets of the consumer are those that it made.
func (s *story) same(names ...string) {
	s.consumer.t.Helper()
	for _, name := range names {
		w := must(s.consumer.any.Resource(sharedWidgets).Namespace("default").Get(s.consumer.t.Context(), name, metav1.GetOptions{}))(s.consumer.t)
		if w.GetUID() != s.uids[name] {
			s.consumer.t.Errorf("widget %s is another: %v", name, w.Object)
		}
	}
}

// reads fails the test unless the provider may read the secrets of the consumer, or not.
func (s *story) reads(want bool) {
	s.consumer.t.Helper()
	v := s.provider.view("")
	v.as = server.System()
	_, err := v.kube(storyConsumer).CoreV1().Secrets("default").List(v.t.Context(), metav1.ListOptions{})
	if want && err != nil || !want && !apierrors.IsForbidden(err) {
		s.consumer.t.Errorf("the provider reads secrets %t, but: %v", want, err)
	}
}
