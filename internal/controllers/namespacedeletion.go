package controllers

import (
	"context"
	"errors"
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
	"github.com/unforked/kcp/internal/feed"
)

// NamespaceDeletion deletes the content of namespaces that are being deleted, and then the
// namespaces, as Kubernetes does. Kubernetes first waits for writes that were admitted
// before the deletion began. Here the store refuses them: they compare the namespace.
func NamespaceDeletion(d Deps) control.Loop {
	all := func() []control.Key { return loopKeys(d.Namespaces.Keys()) }
	ending := &endingNamespaces{inbox: newInbox(all), all: all, deleting: d.deleting}
	d.Store.Feed().Follow(ending)
	return control.Loop{
		Name: "namespace-deletion",
		On:   d.on(ending.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if !d.deleting(k) {
				return nil
			}
			clients, err := namespaceClients(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			return clients.empty(ctx, k.Name)
		},
	}
}

// deleting reports whether a namespace exists and is being deleted.
func (d Deps) deleting(k control.Key) bool {
	n, _ := d.Namespaces.Get(k.Cluster, "", k.Name)
	return n.Deleted != nil
}

// contentClients are clients of one cluster that delete the content of namespaces.
type contentClients struct {
	core    typedcorev1.CoreV1Interface
	objects metadata.Interface
	// resources returns the namespaced resources. It reads discovery once.
	resources func() ([]*metav1.APIResourceList, error)
}

func namespaceClients(config *rest.Config) (*contentClients, error) {
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
		// Upstream would end the process.
		return nil, errors.Join(errors.New("find namespaced resources: no resources are served"), err)
	}
	return &contentClients{core, objects, resources}, nil
}

// empty deletes the content of a namespace that is being deleted, and then the namespace.
func (c *contentClients) empty(ctx context.Context, namespace string) error {
	err := deletion.NewNamespacedResourcesDeleter(ctx, c.core.Namespaces(), c.objects, c.core, c.resources, corev1.FinalizerKubernetes).Delete(ctx, namespace)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		// Deletions of objects wake the loop earlier.
		return control.After(time.Duration(remaining.Estimate/2+1) * time.Second)
	}
	return err
}

// endingNamespaces finds namespaces when their deletion begins, and again when their content
// changes.
type endingNamespaces struct {
	*inbox
	// all and deleting read a table that follows the change feed before this follower.
	all      func() []control.Key
	deleting func(control.Key) bool

	reading bool
}

// Reset implements [feed.Follower].
func (f *endingNamespaces) Reset() { f.reading = true }

// Apply implements [feed.Follower].
func (f *endingNamespaces) Apply(e feed.Event) {
	k := control.Key{Cluster: e.Key.Cluster, Name: e.Key.Namespace}
	if e.Key.Resource == namespaces {
		k.Name = e.Key.Name
	}
	if !f.reading && k.Name != "" && f.deleting(k) {
		f.put(k)
	}
}

// Done implements [feed.Follower].
func (f *endingNamespaces) Done() {
	f.reading = false
	for _, k := range f.all() {
		if f.deleting(k) {
			f.put(k)
		}
	}
}
