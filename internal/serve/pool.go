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
	Definitions *Definitions
	// Native reports whether the server itself has a resource, for which no
	// definition counts.
	Native func(schema.GroupResource) bool
	// Fresh waits until everything is known that may have been written by now, and
	// reports whether it is.
	Fresh func(context.Context) bool
	// Storage of custom resources.
	Storage generic.RESTOptionsGetter
	// Metadata is the storage of custom resources in all clusters, of which it gives
	// the metadata.
	Metadata   generic.RESTOptionsGetter
	Admission  admission.Interface
	Authorizer authorizer.Authorizer
	// Models are the OpenAPI models of what every object has. It is called once,
	// with the first request.
	Models         func() map[string]*spec.Schema
	RequestTimeout time.Duration
	// MinRequestTimeout is how long a watch lasts at least, if its client does not say.
	MinRequestTimeout time.Duration
	MaxBody           int64 // bytes
	// Dialer calls the webhooks that convert between versions.
	Dialer *dial.Dialer
}

// A Pool serves the custom resources of all clusters. It holds one handler for
// each content, made when the first request for it comes. Of a content that is
// converted by a webhook it holds one for each cluster that uses it: conversions have
// no context, so whose they are must be known from the handler.
type Pool struct {
	config   PoolConfig
	models   func() map[string]*spec.Schema
	handlers *handlers
}

// NewPool returns a pool without handlers.
func NewPool(c PoolConfig) *Pool {
	return &Pool{config: c, models: sync.OnceValue(c.Models), handlers: newHandlers()}
}

// Wrap returns a handler of the custom resources of the cluster of a request, which
// leaves everything else to next.
func (p *Pool) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, req)
			return
		}
		gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
		if p.config.Native(gr) {
			next.ServeHTTP(w, req)
			return
		}
		c, _ := cluster.From(req.Context())
		served, revision, ok := p.config.Definitions.Find(c, gr)
		if !ok && p.config.Fresh(req.Context()) {
			served, revision, ok = p.config.Definitions.Find(c, gr)
		}
		if !ok {
			if h := p.anywhere(req, c, info); h != nil {
				h.ServeHTTP(w, req)
			} else {
				next.ServeHTTP(w, req)
			}
			return
		}
		req = req.WithContext(store.WithIdentity(req.Context(), served.Identity))
		p.serve(w, p.conditional(req, info, served, revision), served)
	})
}

// conditional returns a request with what its effect depends on: a write on the
// definition at that revision, and a watch on that it stays the same.
func (p *Pool) conditional(req *http.Request, info *request.RequestInfo, s Served, revision int64) *http.Request {
	if revision == 0 {
		return req // the server gives it, and nobody changes it
	}
	c, _ := cluster.From(req.Context())
	gr := s.Content.GroupResource()
	switch info.Verb {
	case "get", "list", "watch":
		return req
	default:
		on := store.Key{Resource: CustomResourceDefinitions(), Cluster: c, Name: DefinitionName(gr)}
		return req.WithContext(store.WithCondition(req.Context(), &store.Condition{
			Of: store.CustomResource(gr, s.Identity), On: on, Revision: revision,
			Renew: func(ctx context.Context, _ int64) (int64, error) {
				p.config.Fresh(ctx)
				now, revision, ok := p.config.Definitions.Find(c, gr)
				if !ok || now.Content.Hash != s.Content.Hash {
					return 0, apierrors.NewTooManyRequests(fmt.Sprintf("the definition of %s has changed meanwhile", gr), 1)
				}
				return revision, nil
			},
		}))
	}
}

func (p *Pool) serve(w http.ResponseWriter, req *http.Request, s Served) {
	gv := schema.GroupVersion{Group: s.Content.Definition.Spec.Group}
	info, _ := request.RequestInfoFrom(req.Context())
	gv.Version = info.APIVersion
	kind := gv.WithKind(s.Content.Definition.Status.AcceptedNames.Kind)
	if undecodable(req) && !isWellKnown(kind) {
		err := negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
		return
	}
	if callsWebhook(s.Content.Definition) {
		if err := beginOutside(req.Context()); err != nil {
			responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
			return
		}
	}
	h, done, err := p.handler(req.Context(), s.Content)
	if err != nil {
		err = apierrors.NewInternalError(fmt.Errorf("cannot serve %s: %w", s.Content.GroupResource(), err))
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
		return
	}
	defer func() { WhenServed(req.Context(), done) }()
	defer forgetPatterns()
	if isWellKnown(kind) {
		h = wellKnown{h, kind, p.config.MaxBody}
	}
	if info.Verb == "watch" {
		c, _ := cluster.From(req.Context())
		ctx, ended := p.config.Definitions.Last(req.Context(), c, s)
		defer func() { WhenServed(ctx, ended) }()
		req = req.WithContext(ctx)
	}
	h.ServeHTTP(w, req)
}

// handler returns the handler of a content for the cluster of a request.
func (p *Pool) handler(ctx context.Context, c *Content) (h http.Handler, done func(), err error) {
	key := handlerKey{content: c.Hash}
	var calls webhook.AuthenticationInfoResolverWrapper
	if callsWebhook(c.Definition) {
		key.tenant, _ = cluster.From(ctx)
		calls = webhooks(p.config.Dialer, key.tenant, c.Definition)
	}
	return p.handlers.of(key, c, func(d *oneDefinition) (http.Handler, error) { return p.build(d, p.config.Storage, calls) })
}

func (p *Pool) build(d *oneDefinition, from generic.RESTOptionsGetter, calls webhook.AuthenticationInfoResolverWrapper) (http.Handler, error) {
	o := p.config
	if d.crd.Spec.Group == "" {
		return p.buildCore(d, from)
	}
	upstream, err := apiextensions.NewCustomResourceDefinitionHandler(nil, nil, d, http.NotFoundHandler(), from, o.Admission,
		nil, nil, calls, 1, o.Authorizer, o.RequestTimeout, o.MinRequestTimeout, p.models(), o.MaxBody)
	if err != nil {
		return nil, err
	}
	return withPlainReads(upstream, d.crd), nil
}

// Handlers returns how many handlers there are.
func (p *Pool) Handlers() int { return p.handlers.len() }

// Close tears all handlers down. Requests must have ended.
func (p *Pool) Close() { p.handlers.close() }

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
