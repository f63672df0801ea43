package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
)

// NamespaceDeletion empties namespaces that are being deleted, as Kubernetes does,
// and lets go of them then.
func NamespaceDeletion(d Deps) control.Loop {
	all := func() []control.Key { return keys(d.Namespaces.Keys()) }
	ending := &endingNamespaces{inbox: newInbox(all), all: all, ending: d.isEnding}
	d.Store.Spine().Follow(ending)
	return control.Loop{
		Name: "namespace-deletion",
		On:   []control.Source{ending.source(d.Store.Spine().Ready())},
		Do: func(ctx context.Context, k control.Key) error {
			if !d.isEnding(k) {
				return nil
			}
			deleter, err := namespaceDeleter(ctx, d.Client(k.Cluster))
			if err != nil {
				return fmt.Errorf("empty namespace %s: %w", k.Name, err)
			}
			err = deleter.Delete(ctx, k.Name)
			var remaining *deletion.ResourcesRemainingError
			if errors.As(err, &remaining) {
				// Whatever goes wakes the loop earlier.
				return control.After(time.Duration(remaining.Estimate/2+1) * time.Second)
			}
			return err
		},
	}
}

// isEnding reports whether the namespace that k names is being deleted.
func (d Deps) isEnding(k control.Key) bool {
	deleted, ok := d.Namespaces.Get(k.Cluster, "", k.Name)
	return ok && deleted != nil
}

// namespaceDeleter returns what empties a namespace of one cluster. What resources
// there are is asked once: upstream asks twice and, worse, ends the process if the
// first answer is that there are none.
func namespaceDeleter(ctx context.Context, config *rest.Config) (deletion.NamespacedResourcesDeleterInterface, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := typedcorev1.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	served, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	resources := sync.OnceValues(served.ServerPreferredNamespacedResources)
	if all, err := resources(); len(all) == 0 {
		return nil, errors.Join(errors.New("no resources are served"), err)
	}
	return deletion.NewNamespacedResourcesDeleter(ctx, core.Namespaces(), objects, core,
		func() ([]*metav1.APIResourceList, error) { return resources() }, corev1.FinalizerKubernetes), nil
}

// endingNamespaces finds the namespaces that are being deleted, and those of them
// from which something goes.
type endingNamespaces struct {
	*inbox
	all     func() []control.Key // from a table that is told of events before
	ending  func(control.Key) bool
	reading bool
}

// Reset implements [store.Follower].
func (f *endingNamespaces) Reset() { f.reading = true }

// Apply implements [store.Follower].
func (f *endingNamespaces) Apply(e store.Event) {
	k := control.Key{Cluster: e.Key.Cluster, Name: e.Key.Namespace}
	switch {
	case f.reading:
		return
	case e.Key.Resource == namespaces && !e.Deleted():
		k.Name = e.Key.Name
	case e.Key.Namespace == "" || !e.Deleted():
		return
	}
	if f.ending(k) {
		f.put(k)
	}
}

// Done implements [store.Follower].
func (f *endingNamespaces) Done() {
	f.reading = false
	for _, k := range f.all() {
		if f.ending(k) {
			f.put(k)
		}
	}
}
