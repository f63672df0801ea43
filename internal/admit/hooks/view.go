package hooks

import (
	"context"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	registrationinformers "k8s.io/client-go/informers/admissionregistration"
	registrationv1informers "k8s.io/client-go/informers/admissionregistration/v1"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	registrationv1listers "k8s.io/client-go/listers/admissionregistration/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A view is what a plugin sees of the server: one cluster. The types below implement the few
// methods of informers and clients that plugins call. Other methods panic.
type view struct {
	*Hooks
	place
	configurations []configuration
	read           *namespacesRead // of one request; nil for a plugin
}

func newView(h *Hooks, at place, all []configuration) view {
	return view{Hooks: h, place: at, configurations: all, read: &namespacesRead{}}
}

// namespacesRead keeps the namespace that the policies of one request read.
type namespacesRead struct {
	mu   sync.Mutex
	last *corev1.Namespace
}

// authorizer returns an authorizer of the cluster of the hooks. The library calls it without
// the context of the request. So a provider cannot find out rights in the clusters of its
// consumers.
func (v view) authorizer() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		return v.config.Authorizer.Authorize(cluster.With(ctx, v.from), a)
	})
}

// namespace returns a namespace of the cluster of the request.
func (v view) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	if v.read == nil {
		return v.readNamespace(ctx, name)
	}
	v.read.mu.Lock()
	defer v.read.mu.Unlock()
	if v.read.last != nil && v.read.last.Name == name {
		return v.read.last, nil
	}
	ns, err := v.readNamespace(ctx, name)
	if err == nil {
		v.read.last = ns
	}
	return ns, err
}

func (v view) readNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	gr := schema.GroupResource{Resource: "namespaces"}
	o, _, err := v.config.Store.Read(ctx, keys.Key{Resource: keys.NativeResource(gr), Cluster: v.in, Name: name})
	switch {
	case err != nil:
		return nil, err
	case o == nil:
		return nil, apierrors.NewNotFound(gr, name)
	}
	if ns, ok := o.(*corev1.Namespace); ok {
		return ns, nil
	}
	ns := &corev1.Namespace{}
	return ns, legacyscheme.Scheme.Convert(o, ns, nil)
}

type factory struct {
	informers.SharedInformerFactory
	view
}

func (f factory) Core() coreinformers.Interface { return coreGroup{view: f.view} }

func (f factory) Admissionregistration() registrationinformers.Interface {
	return registration{view: f.view}
}

type coreGroup struct {
	coreinformers.Interface
	view
}

func (g coreGroup) V1() corev1informers.Interface { return coreVersion{view: g.view} }

type coreVersion struct {
	corev1informers.Interface
	view
}

func (g coreVersion) Namespaces() corev1informers.NamespaceInformer { return namespaces{view: g.view} }

type namespaces struct {
	corev1listers.NamespaceLister
	view
}

func (n namespaces) Informer() cache.SharedIndexInformer   { return synced{} }
func (n namespaces) Lister() corev1listers.NamespaceLister { return n }

// Get implements [corev1listers.NamespaceLister].
func (n namespaces) Get(name string) (*corev1.Namespace, error) {
	return n.namespace(context.Background(), name)
}

type registration struct {
	registrationinformers.Interface
	view
}

func (g registration) V1() registrationv1informers.Interface {
	return registrationVersion{view: g.view}
}

type registrationVersion struct {
	registrationv1informers.Interface
	view
}

func (g registrationVersion) MutatingWebhookConfigurations() registrationv1informers.MutatingWebhookConfigurationInformer {
	return mutatingInformer(g)
}

func (g registrationVersion) ValidatingWebhookConfigurations() registrationv1informers.ValidatingWebhookConfigurationInformer {
	return validatingInformer(g)
}

type mutatingInformer registrationVersion

func (i mutatingInformer) Informer() cache.SharedIndexInformer { return synced{} }

func (i mutatingInformer) Lister() registrationv1listers.MutatingWebhookConfigurationLister {
	return mutatingLister{all: listed[*admissionregistrationv1.MutatingWebhookConfiguration](i.configurations)}
}

type mutatingLister struct {
	registrationv1listers.MutatingWebhookConfigurationLister
	all []*admissionregistrationv1.MutatingWebhookConfiguration
}

func (l mutatingLister) List(labels.Selector) ([]*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return l.all, nil
}

type validatingInformer registrationVersion

func (i validatingInformer) Informer() cache.SharedIndexInformer { return synced{} }

func (i validatingInformer) Lister() registrationv1listers.ValidatingWebhookConfigurationLister {
	return validatingLister{all: listed[*admissionregistrationv1.ValidatingWebhookConfiguration](i.configurations)}
}

type validatingLister struct {
	registrationv1listers.ValidatingWebhookConfigurationLister
	all []*admissionregistrationv1.ValidatingWebhookConfiguration
}

func (l validatingLister) List(labels.Selector) ([]*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return l.all, nil
}

// listed returns the objects of rows.
func listed[T runtime.Object](rows []configuration) []T {
	all := make([]T, 0, len(rows))
	for _, r := range rows {
		if o, ok := r.object.(T); ok {
			all = append(all, o)
		}
	}
	return all
}

// synced is an informer that has all objects and never gets others: a plugin is built again
// when its objects change.
type synced struct{ cache.SharedIndexInformer }

func (synced) HasSynced() bool { return true }

// AddEventHandler implements [cache.SharedInformer].
func (synced) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return handled{}, nil
}

type handled struct {
	cache.ResourceEventHandlerRegistration
}

func (handled) HasSynced() bool { return true }

// client is a client that reads namespaces.
type client struct {
	kubernetes.Interface
	view
}

func (c client) CoreV1() typedcorev1.CoreV1Interface { return coreClient{view: c.view} }

type coreClient struct {
	typedcorev1.CoreV1Interface
	view
}

func (c coreClient) Namespaces() typedcorev1.NamespaceInterface {
	return namespaceClient{view: c.view}
}

type namespaceClient struct {
	typedcorev1.NamespaceInterface
	view
}

// Get implements [typedcorev1.NamespaceInterface].
func (c namespaceClient) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return c.namespace(ctx, name)
}
