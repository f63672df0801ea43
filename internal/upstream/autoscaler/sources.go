package autoscaler

import (
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// handler is what the controller does when an object comes or goes.
type handler = cache.ResourceEventHandler

// synced is an informer that only accepts an event handler. All other methods panic.
type synced struct {
	cache.SharedIndexInformer // nil
	objects                   *objects
}

// HasSynced implements [cache.SharedIndexInformer].
func (synced) HasSynced() bool { return true }

// AddEventHandlerWithResyncPeriod implements [cache.SharedIndexInformer].
func (s synced) AddEventHandlerWithResyncPeriod(h handler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	s.objects.handler = h
	return nil, nil
}

// Informer implements the informer of HorizontalPodAutoscalers of client-go.
func (o *objects) Informer() cache.SharedIndexInformer { return synced{objects: o} }

// Lister implements the informer of HorizontalPodAutoscalers of client-go.
func (o *objects) Lister() autoscalinglisters.HorizontalPodAutoscalerLister {
	return lister{objects: o}
}

// lister returns the objects that are being evaluated. Its methods for lists panic.
type lister struct {
	autoscalinglisters.HorizontalPodAutoscalerLister          // nil
	autoscalinglisters.HorizontalPodAutoscalerNamespaceLister // nil

	objects   *objects
	namespace string
}

// List is ambiguous in the embedded interfaces, and not used.
func (lister) List(labels.Selector) ([]*autoscalingv2.HorizontalPodAutoscaler, error) {
	panic("unused")
}

// HorizontalPodAutoscalers implements [autoscalinglisters.HorizontalPodAutoscalerLister].
func (l lister) HorizontalPodAutoscalers(namespace string) autoscalinglisters.HorizontalPodAutoscalerNamespaceLister {
	return lister{objects: l.objects, namespace: namespace}
}

// Get implements [autoscalinglisters.HorizontalPodAutoscalerNamespaceLister].
func (l lister) Get(name string) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	if a := l.objects.get(l.namespace + "/" + name); a != nil {
		return a, nil
	}
	return nil, apierrors.NewNotFound(autoscalingv2.Resource("horizontalpodautoscalers"), name)
}

// pods are the informer and the lister of pods of client-go. Methods that the controller does not use panic.
type pods struct {
	corelisters.PodLister // nil
	w                     World
}

// Informer implements the informer of pods of client-go.
func (pods) Informer() cache.SharedIndexInformer { return synced{} }

// Lister implements the informer of pods of client-go.
func (p pods) Lister() corelisters.PodLister { return p }

// Pods implements [corelisters.PodLister].
func (p pods) Pods(namespace string) corelisters.PodNamespaceLister {
	return podsIn{w: p.w, in: split(namespace)}
}

type podsIn struct {
	corelisters.PodNamespaceLister // nil
	w                              World
	in                             Namespace
}

// List implements [corelisters.PodNamespaceLister].
func (p podsIn) List(selector labels.Selector) ([]*corev1.Pod, error) {
	all, err := p.w.Pods(p.in, selector)
	for _, one := range all {
		one.Namespace = p.in.joined() // so that pods of logical clusters with equal names are not one
	}
	return all, err
}
