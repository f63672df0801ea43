package fleet

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/client"
)

const ready = conditions.Ready

// clusterAnnotation has the logical cluster of an object.
const clusterAnnotation = core.ClusterAnnotation

// kindOf caches what a client lists in all logical clusters.
func kindOf[T client.Object, L client.List](name string, all *client.Client[T, L]) *kcp.Kind[T] {
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

// ignoreGone returns nil if an object that was to be changed does not exist any more.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
