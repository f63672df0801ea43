package controllers

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// NamespaceDeletion empties namespaces that are being deleted, as Kubernetes does,
// and lets go of them then. Kubernetes first waits for writes that were admitted
// before the deletion began; here those that come late, even after the namespace is
// gone, are noticed and deleted.
func NamespaceDeletion(d Deps) control.Loop {
	all := func() []control.Key { return keys(d.Namespaces.Keys()) }
	ending := &endingNamespaces{inbox: newInbox(all), all: all, get: d.namespace}
	d.Store.Spine().Follow(ending)
	return control.Loop{
		Name: "namespace-deletion",
		On:   []control.Source{ending.source(d.Store.Spine().Ready())},
		Do: func(ctx context.Context, k control.Key) error {
			late := ending.takeLate(k)
			deleted, exists := d.namespace(k)
			if exists && deleted == nil || !exists && !late {
				return nil
			}
			clients, err := namespaceClients(d.Client(k.Cluster))
			if err == nil && exists {
				err = clients.empty(ctx, k.Name)
			} else if err == nil {
				err = clients.deleteAll(ctx, k.Name)
			}
			if err != nil && !exists {
				ending.setLate(k)
			}
			return err
		},
	}
}

// namespace returns when a namespace began to be deleted, and whether there is one.
func (d Deps) namespace(k control.Key) (deleted *metav1.Time, exists bool) {
	return d.Namespaces.Get(k.Cluster, "", k.Name)
}

// contentClients empty namespaces of one cluster.
type contentClients struct {
	core    typedcorev1.CoreV1Interface
	objects metadata.Interface
	// resources are those that are in namespaces. They are asked for once.
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
		// Upstream ends the process when it is told so.
		return nil, errors.Join(errors.New("find what a namespace can hold: no resources are served"), err)
	}
	return &contentClients{core, objects, resources}, nil
}

// empty does what there is to do for a namespace that is being deleted.
func (c *contentClients) empty(ctx context.Context, namespace string) error {
	err := deletion.NewNamespacedResourcesDeleter(ctx, c.core.Namespaces(), c.objects, c.core, c.resources, corev1.FinalizerKubernetes).Delete(ctx, namespace)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		// Whatever goes wakes the loop earlier.
		return control.After(time.Duration(remaining.Estimate/2+1) * time.Second)
	}
	return err
}

// deleteAll deletes everything in a namespace that does not exist.
func (c *contentClients) deleteAll(ctx context.Context, namespace string) error {
	all, err := c.resources()
	errs := []error{err}
	resources, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"deletecollection"}}, all))
	errs = append(errs, err)
	background := metav1.DeletePropagationBackground
	for r := range resources {
		err := c.objects.Resource(r).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{})
		errs = append(errs, ignore(err, apierrors.IsNotFound, apierrors.IsMethodNotSupported))
	}
	return errors.Join(errs...)
}

// maxEnded is how many namespaces that are gone are remembered, and the same number of
// older ones. What comes late into one comes soon.
const maxEnded = 1000

// endingNamespaces finds the namespaces that are being deleted, those of them from
// which something goes, and those into which something comes late.
type endingNamespaces struct {
	*inbox
	// all and get read a table that is told of events before.
	all func() []control.Key
	get func(control.Key) (deleted *metav1.Time, exists bool)

	reading bool
	// ended are namespaces that are gone, the newest thousand at least.
	ended [2]map[control.Key]bool

	lateMu sync.Mutex
	late   map[control.Key]bool // namespaces into which something came
}

// Reset implements [store.Follower].
func (f *endingNamespaces) Reset() { f.reading = true }

// Apply implements [store.Follower].
func (f *endingNamespaces) Apply(e store.Event) {
	switch {
	case f.reading:
	case e.Key.Resource == namespaces:
		f.namespace(control.Key{Cluster: e.Key.Cluster, Name: e.Key.Name}, e.Deleted())
	case e.Key.Namespace != "":
		f.content(control.Key{Cluster: e.Key.Cluster, Name: e.Key.Namespace}, e)
	}
}

func (f *endingNamespaces) namespace(k control.Key, gone bool) {
	if !gone {
		delete(f.ended[0], k)
		delete(f.ended[1], k)
		if deleted, _ := f.get(k); deleted != nil {
			f.put(k)
		}
		return
	}
	if f.ended[0] == nil || len(f.ended[0]) >= maxEnded {
		f.ended = [...]map[control.Key]bool{{}, f.ended[0]}
	}
	f.ended[0][k] = true
}

// content takes in a change of what is in a namespace.
func (f *endingNamespaces) content(k control.Key, e store.Event) {
	deleted, exists := f.get(k)
	if exists && deleted == nil || !exists && (!f.ended[0][k] && !f.ended[1][k] || e.Deleted()) {
		return
	}
	// What every namespace has is written before the namespace, if together with it.
	if !e.Deleted() && (exists || !tenancy.IsNamespaceContent(e.Key)) {
		f.setLate(k)
	}
	f.put(k)
}

func (f *endingNamespaces) setLate(k control.Key) {
	f.lateMu.Lock()
	defer f.lateMu.Unlock()
	if f.late == nil || f.full(len(f.late)) { // the process whose loop runs knows them too
		f.late = map[control.Key]bool{}
	}
	f.late[k] = true
}

// takeLate reports whether something came since it was last asked.
func (f *endingNamespaces) takeLate(k control.Key) bool {
	f.lateMu.Lock()
	defer f.lateMu.Unlock()
	late := f.late[k]
	delete(f.late, k)
	return late
}

// Done implements [store.Follower].
func (f *endingNamespaces) Done() {
	f.reading = false
	for _, k := range f.all() {
		if deleted, _ := f.get(k); deleted != nil {
			f.put(k)
		}
	}
}
