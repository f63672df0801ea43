package deletion

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

var namespaces = keys.Resource{Root: keys.Native, Resource: "namespaces"}

// Namespaces deletes the content of namespaces that are being deleted, and then the namespaces, as
// Kubernetes does; objects of the resources in last after all others. The table has the namespaces
// of a store. Kubernetes first waits for writes that were admitted before the deletion began. Here
// the store refuses them: they compare the namespace.
func Namespaces(s *store.Store, table *feed.Table[store.Namespace], client func(cluster.Name) *rest.Config, last []schema.GroupResource) control.Loop {
	ending := &endingNamespaces{Inbox: trigger.New(func() []control.Key { return trigger.Keys(table.Keys()) }), table: table}
	s.Feed().Follow(ending)
	return control.Loop{
		Name: "namespace-deletion",
		Slow: slow,
		On:   trigger.On(s.Feed(), ending.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if !ending.deleting(k) {
				return nil
			}
			clients, err := namespaceClients(client(k.Cluster), last)
			if err != nil {
				return err
			}
			return clients.empty(ctx, k.Name)
		},
	}
}

// contentClients are clients of one cluster that delete the content of namespaces.
type contentClients struct {
	core    typedcorev1.CoreV1Interface
	objects metadata.Interface
	// resources returns the namespaced resources. It reads discovery once.
	resources func() ([]*metav1.APIResourceList, error)
	// last are the resources whose objects are deleted when all others are gone.
	last []schema.GroupResource
}

func namespaceClients(config *rest.Config, last []schema.GroupResource) (*contentClients, error) {
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
	return &contentClients{core, objects, resources, last}, nil
}

// empty deletes the content of a namespace that is being deleted, and then the namespace.
func (c *contentClients) empty(ctx context.Context, namespace string) error {
	all, failed := c.resources()
	first, last := c.inOrder(all)
	namespaces := c.core.Namespaces()
	emptied := namespaces
	if len(last) > 0 {
		emptied = emptiedNamespaces{namespaces, func() error { return c.delete(ctx, namespaces, last, failed, namespace) }}
	}
	err := c.delete(ctx, emptied, first, failed, namespace)
	var remaining *deletion.ResourcesRemainingError
	if errors.As(err, &remaining) {
		// Deletions of objects wake the loop earlier.
		return control.After(time.Duration(remaining.Estimate/2+1) * time.Second)
	}
	return err
}

// delete deletes the objects of some resources in a namespace. Then it ends the namespace.
func (c *contentClients) delete(ctx context.Context, namespaces typedcorev1.NamespaceInterface, some []*metav1.APIResourceList, failed error, namespace string) error {
	served := func() ([]*metav1.APIResourceList, error) { return some, failed }
	return deletion.NewNamespacedResourcesDeleter(ctx, namespaces, c.objects, c.core, served, corev1.FinalizerKubernetes).Delete(ctx, namespace)
}

// inOrder separates the resources whose objects are deleted last from the others.
func (c *contentClients) inOrder(all []*metav1.APIResourceList) (first, last []*metav1.APIResourceList) {
	for _, of := range all {
		group := schema.FromAPIVersionAndKind(of.GroupVersion, "").Group
		isLast := func(r metav1.APIResource) bool {
			return slices.Contains(c.last, schema.GroupResource{Group: group, Resource: r.Name})
		}
		if !slices.ContainsFunc(of.APIResources, isLast) {
			first = append(first, of)
			continue
		}
		early, late := *of, *of
		early.APIResources = slices.DeleteFunc(slices.Clone(of.APIResources), isLast)
		late.APIResources = slices.DeleteFunc(slices.Clone(of.APIResources), func(r metav1.APIResource) bool { return !isLast(r) })
		first, last = append(first, &early), append(last, &late)
	}
	return first, last
}

// emptiedNamespaces empties a namespace before it ends it.
type emptiedNamespaces struct {
	typedcorev1.NamespaceInterface
	empty func() error // ends the namespace, too
}

// Finalize implements [typedcorev1.NamespaceInterface].
func (n emptiedNamespaces) Finalize(_ context.Context, namespace *corev1.Namespace, _ metav1.UpdateOptions) (*corev1.Namespace, error) {
	return namespace, n.empty()
}

// UpdateStatus implements [typedcorev1.NamespaceInterface]. It does not report that nothing is left:
// Finalize does, or reports what is. Two reports in turn would wake the loop without end.
func (n emptiedNamespaces) UpdateStatus(ctx context.Context, namespace *corev1.Namespace, o metav1.UpdateOptions) (*corev1.Namespace, error) {
	isTrue := func(c corev1.NamespaceCondition) bool { return c.Status == corev1.ConditionTrue }
	if all := namespace.Status.Conditions; len(all) > 0 && !slices.ContainsFunc(all, isTrue) {
		return namespace, nil
	}
	return n.NamespaceInterface.UpdateStatus(ctx, namespace, o)
}

// endingNamespaces finds namespaces when their deletion begins, and again when their content
// changes.
type endingNamespaces struct {
	*trigger.Inbox
	table   *feed.Table[store.Namespace] // follows the change feed before this follower
	reading bool
}

// deleting reports whether a namespace exists and is being deleted.
func (f *endingNamespaces) deleting(k control.Key) bool {
	n, _ := f.table.Get(k.Cluster, "", k.Name)
	return n.Deleted != nil
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
		f.Put(k)
	}
}

// Done implements [feed.Follower].
func (f *endingNamespaces) Done() {
	f.reading = false
	for _, k := range trigger.Keys(f.table.Keys()) {
		if f.deleting(k) {
			f.Put(k)
		}
	}
}
