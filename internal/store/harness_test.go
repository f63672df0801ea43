package store

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/internal/cluster"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// open starts a store in dir with storage for config maps.
func open(t testing.TB, dir string) (*Store, storage.Interface, func()) {
	t.Helper()
	s, err := Open(t.Context(), here(Options{Dir: dir, Version: "1.36", NoSync: true}))
	if err != nil {
		t.Fatal(err)
	}
	cm := storageOf(t, s.Natives(jsonConfig), configMaps, attrsOf, func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} })
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, cm, s.Close
}

func storageOf(t testing.TB, g generic.RESTOptionsGetter, gr schema.GroupResource, attrs storage.AttrFunc, newFunc, newList func() runtime.Object) storage.Interface {
	t.Helper()
	o, err := g.GetRESTOptions(gr, newFunc())
	if err != nil {
		t.Fatal(err)
	}
	st, destroy, err := o.Decorator(o.StorageConfig, o.ResourcePrefix, nil, newFunc, newList, attrs, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return st
}

func jsonConfig(gr schema.GroupResource, _ runtime.Object) (*storagebackend.ConfigForResource, error) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	codec := scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	return storagebackend.NewDefaultConfig("/", codec).ForResource(gr), nil
}

func attrsOf(o runtime.Object) (labels.Set, fields.Set, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil, errNotAnObject
	}
	return m.GetLabels(), fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}, nil
}

// create creates clusters.
func create(t testing.TB, s *Store, names ...cluster.Name) {
	t.Helper()
	for _, c := range names {
		if _, err := s.Commit(t.Context(), nil, Fence{Cluster: c, State: Active}); err != nil {
			t.Fatal(err)
		}
	}
}

func in(c cluster.Name) context.Context { return cluster.With(context.Background(), c) }

const cmRoot = "/n/core/configmaps/-"

func configMap(ns, name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{"v": value}}
}

func everything(rv string) storage.ListOptions {
	return storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
}
