package provider

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// For returns a builder of a controller for a kind. With a [Provider], all tenants share one
// source of events. With other providers it is ControllerManagedBy(mgr).For(object).
//
// The method For of the builder also works with a Provider. Then multicluster-runtime has a
// source for each tenant, with two goroutines. One of them stays until the controller ends,
// also after the tenant has left. Use it if the controller calls Owns.
func For(mgr mcmanager.Manager, object client.Object, predicates ...predicate.Predicate) *mcbuilder.Builder {
	b := mcbuilder.ControllerManagedBy(mgr)
	p, ours := mgr.GetProvider().(*Provider)
	gvk, err := apiutil.GVKForObject(object, mgr.GetLocalManager().GetScheme())
	if !ours || err != nil { // For reports the error
		return b.For(object, mcbuilder.WithPredicates(predicates...))
	}
	return b.Named(strings.ToLower(gvk.Kind)).WatchesRawSource(p.Source(object, predicates...))
}

// Source returns a source of requests for the objects of a kind in all tenants that this
// replica serves.
func (p *Provider) Source(object client.Object, predicates ...predicate.Predicate) source.TypedSource[mcreconcile.Request] {
	return source.TypedFunc[mcreconcile.Request](func(_ context.Context, q workqueue.TypedRateLimitingInterface[mcreconcile.Request]) error {
		key, err := kindOf(object, p.scheme)
		if err != nil {
			return err
		}
		s := &wide{p: p, key: key, queue: q, predicates: predicates}
		p.mu.Lock()
		p.sources = append(p.sources, s)
		var views []*view
		for _, v := range p.views {
			views = append(views, v)
		}
		p.mu.Unlock()
		for _, v := range views {
			if err := s.follow(v); err != nil {
				return err
			}
		}
		return nil
	})
}

// A wide source has the events of all engaged tenants.
type wide struct {
	p          *Provider
	key        kindKey
	queue      workqueue.TypedRateLimitingInterface[mcreconcile.Request]
	predicates []predicate.Predicate
}

// follow adds the events of a view. A second call does nothing.
func (s *wide) follow(v *view) error {
	k, err := v.kind(s.key)
	if err != nil {
		return err
	}
	k.deliver.Lock()
	defer k.deliver.Unlock()
	for _, w := range k.wide {
		if w == s {
			return nil
		}
	}
	k.wide = append(k.wide, s)
	for _, o := range k.objects.List() {
		s.added(k, o.(client.Object))
	}
	return nil
}

// engaged adds the objects of a tenant that has just been engaged.
func (s *wide) engaged(t *tenant) error {
	k, err := t.view.kind(s.key)
	if err != nil {
		return err
	}
	all, err := k.objects.ByIndex(byTenant, t.name)
	for _, o := range all {
		s.added(k, o.(client.Object))
	}
	return err
}

func (s *wide) added(k *kind, o client.Object) {
	s.enqueue(k, o, func(p predicate.Predicate) bool { return p.Create(event.CreateEvent{Object: o}) })
}

func (s *wide) updated(k *kind, old, o client.Object) {
	s.enqueue(k, o, func(p predicate.Predicate) bool { return p.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: o}) })
}

func (s *wide) deleted(k *kind, o client.Object) {
	s.enqueue(k, o, func(p predicate.Predicate) bool { return p.Delete(event.DeleteEvent{Object: o}) })
}

// enqueue adds a request for an object, if this replica serves its tenant and all predicates
// pass.
func (s *wide) enqueue(k *kind, o client.Object, pass func(predicate.Predicate) bool) {
	name := multicluster.ClusterName(tenantOf(o))
	s.p.mu.RLock()
	t := s.p.tenants[name]
	s.p.mu.RUnlock()
	if t == nil || t.view != k.view {
		return
	}
	for _, p := range s.predicates {
		passed := false
		if err := safely(func() { passed = pass(p) }); err != nil {
			k.complain(err, "predicate panicked; the event is left out", o)
		}
		if !passed {
			return
		}
	}
	s.queue.Add(mcreconcile.Request{ClusterName: name, Request: reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}}})
}
