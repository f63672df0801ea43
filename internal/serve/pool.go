package serve

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/dial"
	"github.com/unforked/kcp/internal/store"
)

// PoolConfig is what a pool needs. All fields are required.
type PoolConfig struct {
	// ShapeOf returns what the cluster of a request serves.
	ShapeOf func(context.Context) *Shape
	// Storage of custom resources.
	Storage    generic.RESTOptionsGetter
	Admission  admission.Interface
	Authorizer authorizer.Authorizer
	// Models are the OpenAPI models of what every object has. It is called once,
	// with the first request.
	Models         func() map[string]*spec.Schema
	RequestTimeout time.Duration
	MaxBody        int64 // bytes
	// Dialer calls the webhooks that convert between versions.
	Dialer *dial.Dialer
	// NotFound answers requests for what a cluster does not serve.
	NotFound http.Handler
}

// A Pool serves the custom resources of all clusters. It holds one handler for
// each content, made when the first request for it comes. Of a content that is
// converted by a webhook it holds one for each cluster that uses it: conversions have
// no context, so whose they are must be known from the handler.
type Pool struct {
	config PoolConfig
	models func() map[string]*spec.Schema

	mu       sync.Mutex
	handlers map[handlerKey]*handler
}

// NewPool returns a pool without handlers.
func NewPool(c PoolConfig) *Pool {
	return &Pool{config: c, models: sync.OnceValue(c.Models), handlers: map[handlerKey]*handler{}}
}

// ServeHTTP implements [http.Handler] for requests below /apis/.
func (p *Pool) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest {
		p.config.NotFound.ServeHTTP(w, req)
		return
	}
	served, ok := p.config.ShapeOf(req.Context()).Find(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
	if !ok {
		p.config.NotFound.ServeHTTP(w, req)
		return
	}
	if undecodable(req) {
		err := negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
		return
	}
	h, err := p.handler(req.Context(), served.Content)
	if err != nil {
		err = apierrors.NewInternalError(fmt.Errorf("cannot serve %s: %w", served.Content.GroupResource(), err))
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, req)
		return
	}
	h.ServeHTTP(w, req.WithContext(store.WithIdentity(req.Context(), served.Identity)))
}

// undecodable reports whether a request has an object in protobuf, which custom
// resources have no form in. Upstream's handler writes some of what it answers that
// way, and panics when it is asked to read it.
func undecodable(req *http.Request) bool {
	if req.Method != http.MethodPost && req.Method != http.MethodPut {
		return false
	}
	kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	return err == nil && kind == runtime.ContentTypeProtobuf
}

// Handlers returns how many handlers there are.
func (p *Pool) Handlers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.handlers)
}

// Close tears all handlers down. Requests must have ended.
func (p *Pool) Close() {
	p.mu.Lock()
	all := p.handlers
	p.handlers = map[handlerKey]*handler{}
	p.mu.Unlock()
	for _, h := range all {
		h.definition.remove()
	}
}

// A handler serves one content. It is made once, without holding up others.
type handler struct {
	definition *oneDefinition
	once       sync.Once
	http       http.Handler
	err        error
}

// A handlerKey is what requests must have in common to be served by one handler.
type handlerKey struct {
	content Hash
	tenant  cluster.Name // only if it calls webhooks
}

func (p *Pool) handler(ctx context.Context, c *Content) (http.Handler, error) {
	key := handlerKey{content: c.Hash}
	var calls webhook.AuthenticationInfoResolverWrapper
	if callsWebhook(c.Definition) {
		key.tenant, _ = cluster.From(ctx)
		calls = webhooks(p.config.Dialer, key.tenant, c.Definition)
	}
	p.mu.Lock()
	h := p.handlers[key]
	if h == nil {
		h = &handler{definition: &oneDefinition{crd: c.Definition}}
		p.handlers[key] = h
	}
	p.mu.Unlock()
	h.once.Do(func() {
		o := p.config
		h.http, h.err = apiextensions.NewCustomResourceDefinitionHandler(nil, nil, h.definition, o.NotFound, o.Storage, o.Admission,
			nil, nil, calls, 1, o.Authorizer, o.RequestTimeout, o.RequestTimeout, p.models(), o.MaxBody)
	})
	return h.http, h.err
}

// oneDefinition is the informer that a handler reads: it knows one definition,
// which never changes, until it is removed.
type oneDefinition struct {
	crd *apiextensionsv1.CustomResourceDefinition

	mu       sync.Mutex
	removed  bool
	handlers []cache.ResourceEventHandler
}

var (
	_ informers.CustomResourceDefinitionInformer = (*oneDefinition)(nil)
	_ listers.CustomResourceDefinitionLister     = (*oneDefinition)(nil)
)

func (d *oneDefinition) Informer() cache.SharedIndexInformer            { return eventsOnly{d: d} }
func (d *oneDefinition) Lister() listers.CustomResourceDefinitionLister { return d }

func (d *oneDefinition) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed {
		return nil, nil
	}
	return []*apiextensionsv1.CustomResourceDefinition{d.crd}, nil
}

func (d *oneDefinition) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed || name != d.crd.Name {
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
	}
	return d.crd, nil
}

// remove makes the handler let go of its storage.
func (d *oneDefinition) remove() {
	d.mu.Lock()
	d.removed = true
	handlers := d.handlers
	d.mu.Unlock()
	for _, h := range handlers {
		h.OnDelete(d.crd)
	}
}

// eventsOnly is an informer to which upstream's handler only adds its handlers.
type eventsOnly struct {
	cache.SharedIndexInformer
	d *oneDefinition
}

func (e eventsOnly) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	e.d.handlers = append(e.d.handlers, h)
	return nil, nil
}
