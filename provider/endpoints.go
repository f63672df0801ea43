package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	toolscache "k8s.io/client-go/tools/cache"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
)

// followEndpoints keeps a view for each URL of the endpoint slice, until ctx ends. There is no
// URL while no workspace binds the export.
func (p *Provider) followEndpoints(ctx context.Context) error {
	requests, err := dynamic.NewForConfigAndClient(p.config, p.http)
	if err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	slice := requests.Resource(apisv1alpha1.GroupVersion.WithResource("apiexportendpointslices"))
	named := fields.OneTermEqualSelector("metadata.name", p.options.EndpointSlice).String()
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = named
				return slice.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = named
				return slice.Watch(ctx, o)
			},
		}, requests),
		ObjectType: &unstructured.Unstructured{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { p.follow(ctx, endpoints(o)) },
			UpdateFunc: func(_, o any) { p.follow(ctx, endpoints(o)) },
			DeleteFunc: func(any) { p.follow(ctx, nil) },
		},
	})
	informer.RunWithContext(ctx)
	p.follow(ctx, nil)
	return nil
}

// endpoints returns the URLs in an endpoint slice.
func endpoints(o any) (urls []string) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "endpoints") // the server checks the type
	for _, one := range all {
		if m, ok := one.(map[string]any); ok {
			if url, ok := m["url"].(string); ok && url != "" {
				urls = append(urls, url)
			}
		}
	}
	return urls
}

// follow starts the views of new URLs, and stops the others. Calls come one after the other.
func (p *Provider) follow(ctx context.Context, urls []string) {
	p.mu.RLock()
	have := slices.Collect(maps.Keys(p.views))
	p.mu.RUnlock()
	for _, url := range have {
		if !slices.Contains(urls, url) {
			p.leave(url)
		}
	}
	for _, url := range urls {
		if slices.Contains(have, url) {
			continue
		}
		if err := p.join(ctx, url); err != nil {
			p.log.Error(err, "cannot use a URL of the endpoint slice", "url", url)
		}
	}
}

func (p *Provider) join(ctx context.Context, url string) error {
	v, err := newView(p, url)
	if err != nil {
		return err
	}
	p.mu.Lock()
	for _, i := range p.indexes {
		key, err := kindOf(i.object, p.scheme)
		if err == nil {
			err = v.index(key, i)
		}
		if err != nil {
			p.mu.Unlock()
			return err
		}
	}
	p.views[url] = v
	sources := slices.Clone(p.sources)
	p.mu.Unlock()
	for _, s := range sources {
		if err := s.follow(v); err != nil {
			return err
		}
	}
	p.log.Info("following a view", "url", url)
	v.bindings.everywhere(func(tenant string) { p.queue.Add(tenant) })
	v.start(ctx)
	return nil
}

func (p *Provider) leave(url string) {
	p.mu.Lock()
	v := p.views[url]
	delete(p.views, url)
	p.mu.Unlock()
	p.log.Info("leaving a view", "url", url)
	p.reconsider()
	v.stop()
}
