// Package storetest has the objects and the steps that tests of the store and of its watch
// caches share. It does not depend on the store.
package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
)

// Patience is how long a test waits for an event before it fails.
const Patience = time.Minute

// ConfigMapsRoot is the start of the registry's keys of [ConfigMaps].
const ConfigMapsRoot = "/n/core/configmaps/-"

// ConfigMaps is the native resource of the tests.
func ConfigMaps() schema.GroupResource { return schema.GroupResource{Resource: "configmaps"} }

// WidgetsRoot is the start of the registry's keys of [Widgets].
const WidgetsRoot = "/c/example.com/widgets"

// Widgets is the custom resource of the tests.
func Widgets() schema.GroupResource {
	return schema.GroupResource{Group: "example.com", Resource: "widgets"}
}

// JSON returns the codec of native objects.
func JSON() runtime.Codec {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
}

// Attrs returns the labels and fields of an object.
func Attrs(o runtime.Object) (labels.Set, fields.Set, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil, errors.New("not an object")
	}
	return m.GetLabels(), fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}, nil
}

// ConfigMap returns a config map with a value.
func ConfigMap(ns, name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{"v": value}}
}

// EmptyConfigMap returns a config map to read into.
func EmptyConfigMap() runtime.Object { return &corev1.ConfigMap{} }

// EmptyConfigMaps returns a list of config maps to read into.
func EmptyConfigMaps() runtime.Object { return &corev1.ConfigMapList{} }

// Widget returns a widget with a value.
func Widget(ns, name, value string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"v": value}}}
	u.SetAPIVersion("example.com/v1")
	u.SetKind("Widget")
	u.SetNamespace(ns)
	u.SetName(name)
	return u
}

// EmptyWidget returns a widget to read into.
func EmptyWidget() runtime.Object { return &unstructured.Unstructured{} }

// EmptyWidgets returns a list of widgets to read into.
func EmptyWidgets() runtime.Object { return &unstructured.UnstructuredList{} }

// In returns the context of a request to a cluster.
func In(c cluster.Name) context.Context { return cluster.With(context.Background(), c) }

// Everything returns the options that select all objects at a resource version.
func Everything(rv string) storage.ListOptions {
	return storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
}

// Status returns the HTTP status of an error, or 0.
func Status(err error) int32 {
	if s, ok := err.(apierrors.APIStatus); ok { //nolint:errorlint // clients get it unwrapped
		return s.Status().Code
	}
	return 0
}

// A Store is what the steps need of a store.
type Store interface {
	Feed() *feed.Feed
	RawClient() *clientv3.Client
}

// StartFeeds starts the feeds of stores.
func StartFeeds[S Store](t testing.TB, all ...S) {
	t.Helper()
	for _, s := range all {
		if err := s.Feed().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// CatchUp waits until the feed has applied all commits.
func CatchUp(t testing.TB, s Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	r, err := s.RawClient().Get(ctx, "x")
	if err == nil {
		err = s.Feed().WaitFor(ctx, r.Header.Revision)
	}
	if err != nil {
		t.Fatal(err)
	}
}
