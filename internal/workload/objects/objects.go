// Package objects has what the packages of workloads share to read and to change API objects. It hides the
// address of the view of an export, how a cache is filled through a typed client, and which errors say that
// an object was deleted.
package objects

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/client"
)

// View returns a configuration for the view of an export, with the objects of all consumers.
func View(s *kcp.Server, home kcp.ClusterName, export string) (*rest.Config, error) {
	cfg, err := s.Own("*")
	if err != nil {
		return nil, err
	}
	cfg.Host = "http://kcp/services/apiexport/" + string(home) + "/" + export
	return cfg, nil
}

// KindOf caches what a client lists, without managed fields.
func KindOf[T client.Object, L client.List](name string, all *client.Client[T, L]) *kcp.Kind[T] {
	return kcp.NewKind(name, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return all.Watch(ctx, o)
		},
	}, func(o T) T {
		o = o.DeepCopyObject().(T) // in-process watches share their objects
		o.SetManagedFields(nil)
		return o
	})
}

// Await waits until all channels are closed. It reports false if ctx ends before.
func Await(ctx context.Context, all ...<-chan struct{}) bool {
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// FinalizersPatch returns a merge patch that sets the finalizers of an object, unless the object has changed.
func FinalizersPatch(o metav1.Object, finalizers []string) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.GetResourceVersion(), "finalizers": finalizers}})
}

// IgnoreGone returns nil if an object that was to be changed does not exist any more.
func IgnoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
