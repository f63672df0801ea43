package upstream

import (
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// A Definition is the informer of one [DefinitionHandler]. It holds one definition, which never
// changes until it is removed.
type Definition struct {
	// CRD is the definition.
	CRD *apiextensionsv1.CustomResourceDefinition

	mu       sync.Mutex
	removed  bool
	handlers []cache.ResourceEventHandler
}

// Informer implements informers.CustomResourceDefinitionInformer.
func (d *Definition) Informer() cache.SharedIndexInformer { return handlersOnly{d: d} }

// Lister implements informers.CustomResourceDefinitionInformer.
func (d *Definition) Lister() listers.CustomResourceDefinitionLister { return d }

// List implements listers.CustomResourceDefinitionLister.
func (d *Definition) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed {
		return nil, nil
	}
	return []*apiextensionsv1.CustomResourceDefinition{d.CRD}, nil
}

// Get implements listers.CustomResourceDefinitionLister.
func (d *Definition) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed || name != d.CRD.Name {
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
	}
	return d.CRD, nil
}

// Remove makes the handler of the definition release its storage.
func (d *Definition) Remove() {
	d.mu.Lock()
	d.removed = true
	handlers := d.handlers
	d.mu.Unlock()
	for _, h := range handlers {
		h.OnDelete(d.CRD)
	}
}

// handlersOnly is an informer that only accepts event handlers. All other methods panic.
//
// At the next minor version: look at NewCustomResourceDefinitionHandler in
// k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go, which uses the
// informer, and at removeDeadStorage, which must release the storage after OnDelete.
type handlersOnly struct {
	cache.SharedIndexInformer // nil
	d                         *Definition
}

// AddEventHandler implements [cache.SharedIndexInformer].
func (e handlersOnly) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	e.d.handlers = append(e.d.handlers, h)
	return nil, nil
}
