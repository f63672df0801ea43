package hooks

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const (
	// paramTime limits a read of parameters.
	paramTime = 5 * time.Second
	// maxParams is the maximum number of parameters of one binding. A policy is evaluated for
	// each.
	maxParams = 100
)

// params returns where a policy reads its parameters: in the cluster of the policy.
func (v view) params(kind *admissionregistrationv1.ParamKind) (informers.GenericInformer, meta.RESTScope, error) {
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return nil, nil, err
	}
	k, ok := v.config.Kind(v.from, gv.WithKind(kind.Kind))
	if !ok {
		return nil, nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gv.WithKind(kind.Kind))
	}
	scope := meta.RESTScopeRoot
	if k.Namespaced {
		scope = meta.RESTScopeNamespace
	}
	client, err := dynamic.NewForConfig(v.config.Client(v.from))
	if err != nil {
		return nil, nil, err
	}
	return params{client.Resource(k.GroupVersionResource())}, scope, nil
}

// params is an informer and lister that reads objects when it is asked for them.
type params struct {
	objects dynamic.NamespaceableResourceInterface
}

var _ informers.GenericInformer = params{}

// Informer implements [informers.GenericInformer].
func (params) Informer() cache.SharedIndexInformer { return synced{} }

// Lister implements [informers.GenericInformer].
func (p params) Lister() cache.GenericLister { return paramsIn{p, p.objects} }

// paramsIn are the parameters of a namespace, or of the cluster.
type paramsIn struct {
	params
	of dynamic.ResourceInterface
}

// ByNamespace implements [cache.GenericLister].
func (p paramsIn) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return paramsIn{p.params, p.objects.Namespace(namespace)}
}

// Get implements [cache.GenericLister].
func (p paramsIn) Get(name string) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), paramTime)
	defer cancel()
	return p.of.Get(ctx, name, metav1.GetOptions{})
}

// List implements [cache.GenericLister].
func (p paramsIn) List(selector labels.Selector) ([]runtime.Object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), paramTime)
	defer cancel()
	list, err := p.of.List(ctx, metav1.ListOptions{LabelSelector: selector.String(), Limit: maxParams})
	if err != nil {
		return nil, err
	}
	if list.GetContinue() != "" {
		return nil, fmt.Errorf("paramRef selects more than %d parameters, which is the limit", maxParams)
	}
	all := make([]runtime.Object, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all, nil
}
