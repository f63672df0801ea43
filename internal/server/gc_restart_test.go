package server_test

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

func widgetDefinition() *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	d.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		}},
	}
	return d
}

func widget(name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion("example.com/v1")
	u.SetKind("Widget")
	u.SetNamespace("default")
	u.SetName(name)
	u.SetUID(types.UID("uid-of-" + name))
	if len(owners) > 0 {
		u.SetOwnerReferences(owners)
	}
	return u
}

func ownerWidget(name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: name, UID: types.UID("uid-of-" + name)}
}

// restartable starts a server for one test.
func restartable(t *testing.T, dir string, c cluster.Name, kinds ...*apiextensionsv1.CustomResourceDefinition) (*tenant, func()) {
	t.Helper()
	s := must(server.New(t.Context(), server.Config{Dir: dir, NoSync: true, Kinds: kinds, EgressAllow: loopback()}))(t)
	stop := sync.OnceFunc(s.Close)
	t.Cleanup(stop)
	o := &tenant{t: t, server: &running{Server: s, dir: dir}, name: c}
	if err := s.MakeCluster(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	o.kube = must(kubernetes.NewForConfig(o.config()))(t)
	o.any = must(dynamic.NewForConfig(o.config()))(t)
	return o, stop
}

// The garbage collector handles events that happened, or were not handled, before a restart.
func TestGarbageOfAStoppedServer(t *testing.T) {
	t.Parallel()
	dir, name := t.TempDir(), cluster.NewName()
	c, stop := restartable(t, dir, name)
	top := c.configMap("top")
	c.configMap("child", owner(top))
	c.configMap("of-widget", ownerWidget("never-was")) // the kind is not served yet
	c.caughtUp()
	c.stays("child")
	c.stays("of-widget")
	stop()

	st := must(store.Open(t.Context(), store.Options{Dir: dir, Version: "1.36", NoSync: true}))(t)
	at := func(r schema.GroupResource, name string) keys.Key {
		return keys.Key{Resource: keys.NativeResource(r), Cluster: c.name, Namespace: "default", Name: name}
	}
	k := at(configMapsResource.GroupResource(), "top")
	_, rev, err := st.Metadata(t.Context(), k)
	if err != nil || rev == 0 {
		t.Fatal(rev, err)
	}
	commit := func(w store.Write) {
		t.Helper()
		w.Cluster = name
		if _, err := st.Commit(t.Context(), []store.Write{w}); err != nil {
			t.Fatal(err)
		}
	}
	commit(store.Write{Resource: k.Resource, Object: &corev1.ConfigMap{ObjectMeta: top.ObjectMeta}, Expect: rev, Delete: true})
	half := widget("half") // its deletion has begun, and one dependent is left
	half.SetDeletionTimestamp(new(metav1.Now()))
	half.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	orphaning := widget("orphaning")
	orphaning.SetDeletionTimestamp(new(metav1.Now()))
	orphaning.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
	ofHalf := ownerWidget("half")
	ofHalf.BlockOwnerDeletion = new(true)
	for _, o := range []*unstructured.Unstructured{
		half, widget("a-of-half", ofHalf), widget("z-of-half", ofHalf),
		orphaning, widget("a-of-orphaning", ownerWidget("orphaning")), widget("z-of-orphaning", ownerWidget("orphaning")),
		widget("top"), widget("a-of-top", ownerWidget("top")),
	} {
		commit(store.Write{Resource: keys.CustomResource(widgets.GroupResource(), ""), Object: o})
	}
	st.Close()

	c, _ = restartable(t, dir, name, widgetDefinition())
	c.awaitConfigMap("child", gone)
	c.awaitConfigMap("of-widget", gone) // its kind is served now
	for _, name := range []string{"half", "a-of-half", "z-of-half", "orphaning"} {
		c.await(widgets, "default", name, gone)
	}
	for _, name := range []string{"a-of-orphaning", "z-of-orphaning"} {
		c.await(widgets, "default", name, hasOwners(0))
	}
	c.caughtUp()
	c.await(widgets, "default", "a-of-top", hasOwners(1))
	if err := c.any.Resource(widgets).Namespace("default").Delete(t.Context(), "top", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(widgets, "default", "a-of-top", gone)
}
