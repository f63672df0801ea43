package agent

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/view/joint"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// A view is the view of the target, in all logical clusters. Its kinds share a connection, because each open
// watch costs the server memory.
type view struct {
	config *rest.Config
	client dynamic.Interface
	joint  *joint.Watch
	scheme *runtime.Scheme // of the API
}

func newView(ctx context.Context, s *server, spawn func(func())) (*view, error) {
	all := client.Cluster(s.config, "*")
	over, err := rest.HTTPClientFor(all)
	if err != nil {
		return nil, err
	}
	v := &view{config: s.config, joint: joint.New(ctx, all.Host, over, spawn), scheme: runtime.NewScheme()}
	if err := workload.AddToScheme(v.scheme); err != nil {
		return nil, err
	}
	v.client, err = dynamic.NewForConfigAndClient(all, over)
	return v, err
}

// items returns the cache of the workloads.
func (v *view) items() *kcp.Kind[*unstructured.Unstructured] {
	all := v.client.Resource(workload.GroupVersion.WithResource(syncer.Workloads))
	return kcp.NewKind[*unstructured.Unstructured](syncer.Workloads, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if w := v.join("Workload", syncer.Workloads, o.ResourceVersion, joint.Whole); w != nil {
				return w, nil
			}
			return all.Watch(ctx, o)
		},
	}, nil)
}

// kindOf returns the cache of a kind of the API.
func kindOf[T client.Object, L client.List](v *view, kind, resource string) (*kcp.Kind[T], error) {
	all, err := client.New[T, L](v.config, "*", workload.GroupVersion.WithResource(resource))
	if err != nil {
		return nil, err
	}
	return kcp.NewKind[T](resource, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if w := v.join(kind, resource, o.ResourceVersion, v.typed); w != nil {
				return w, nil
			}
			return all.Watch(ctx, o)
		},
	}, nil), nil
}

// typed returns an object of the API as its type. The cache reports one that has no such form.
func (v *view) typed(o *unstructured.Unstructured) runtime.Object {
	into, err := v.scheme.New(o.GroupVersionKind())
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into) != nil {
		return o
	}
	return into
}

func (v *view) join(kind, resource, from string, as func(*unstructured.Unstructured) runtime.Object) watch.Interface {
	return v.joint.Join(workload.GroupVersion.WithKind(kind), workload.GroupVersion.WithResource(resource), from, as)
}
