// Package serve serves requests for custom resources in all clusters. It hides the handlers: equal
// definitions share one of upstream's, and the package adds what these lack.
package serve

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/upstream"
)

// PoolConfig configures a [Pool]. All fields are required.
type PoolConfig struct {
	Resolver *catalog.Resolver
	// Native reports whether a resource is native. The pool ignores custom resources of
	// these names.
	Native func(schema.GroupResource) bool
	// Fresh waits until the resolver is at the current revision, and reports whether it is.
	Fresh func(context.Context) bool
	// Storage stores custom resources.
	Storage generic.RESTOptionsGetter
	// Metadata reads the metadata of custom resources in all clusters.
	Metadata generic.RESTOptionsGetter
	// Admission decides about writes.
	Admission admission.Interface
	// Authorizer decides whether an update or an apply may create its object.
	Authorizer authorizer.Authorizer
	// Models returns the OpenAPI models of the standard fields of objects. The pool
	// calls it once, with the first request.
	Models func() map[string]*spec.Schema
	// RequestTimeout is the maximal duration of a request other than a watch.
	RequestTimeout time.Duration
	// MinRequestTimeout is the minimal duration of a watch without a timeout.
	MinRequestTimeout time.Duration
	// MaxBody is the maximal size of a request body, in bytes.
	MaxBody int64
	// Converters convert the objects of resources that the server defines.
	Converters map[schema.GroupResource]catalog.Convert
	// Origin returns where the objects of a resource are that is not stored in the cluster that
	// has it.
	Origin func(ctx context.Context, c cluster.Name, gr schema.GroupResource, f catalog.Found) (*Origin, error)
	// ConversionTimeout is the time that the rules of an APIConversion may take for one object
	// or one list.
	ConversionTimeout time.Duration
	// Requested is called with each request for a resource of an export in a served version. For a
	// watch, it is called again when the watch ends. It must return quickly.
	Requested func(ctx context.Context, of keys.Resource, version string)
	// Dialer calls the webhooks that convert between versions.
	Dialer *dial.Dialer
}

// A Pool serves the custom resources of all clusters. It holds one handler for each
// [catalog.Content], built for the first request. A content with a conversion webhook has one
// handler per cluster: conversions have no context, so the handler must know the cluster.
type Pool struct {
	config    PoolConfig
	models    func() map[string]*spec.Schema
	handlers  *handlers
	callers   *callers
	converted *recent.Cache[convertedKey, []byte]
}

// NewPool returns a pool without handlers.
func NewPool(c PoolConfig) *Pool {
	return &Pool{config: c, models: sync.OnceValue(c.Models), handlers: newHandlers(), callers: newCallers(), converted: recent.New[convertedKey, []byte](maxConverted, convertedIdle)}
}

// Wrap returns a handler that serves the custom resources of a request's cluster, and
// passes other requests to next.
func (p *Pool) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, req)
			return
		}
		if identity, ok := requestedIdentity(req.Context()); ok {
			p.identified(w, req, info, identity)
			return
		}
		gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
		if p.config.Native(gr) {
			next.ServeHTTP(w, req)
			return
		}
		c, _ := cluster.From(req.Context())
		found, ok := viewedFrom(req.Context(), gr)
		if !ok {
			found, ok = p.config.Resolver.Find(c, gr)
		}
		if !ok && p.config.Fresh(req.Context()) {
			found, ok = p.config.Resolver.Find(c, gr)
		}
		if !ok {
			switch h := p.anywhere(req, c, info); {
			case h != nil:
				h.ServeHTTP(w, req)
			case c == "" || c == cluster.All:
				next.ServeHTTP(w, req)
			default:
				refuseUnserved(w, req, info)
			}
			return
		}
		p.found(w, req, info, found)
	})
}

// found serves a request for a resource.
func (p *Pool) found(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, f catalog.Found) {
	defer p.requested(req.Context(), info, f)()
	if f.Content.Storage() != catalog.Stored {
		p.virtual(w, req, info, f)
		return
	}
	req = req.WithContext(registry.WithIdentity(req.Context(), f.Identity))
	p.serve(w, p.conditional(req, info, f), f)
}

// requested reports a request for a resource of an export in a version that is served. The caller
// calls returned after the handler has returned.
func (p *Pool) requested(ctx context.Context, info *request.RequestInfo, f catalog.Found) (returned func()) {
	if f.Identity == "" || !apihelpers.HasServedCRDVersion(f.Content.Definition, info.APIVersion) {
		return func() {}
	}
	report := func() {
		p.config.Requested(ctx, keys.CustomResource(f.Content.GroupResource(), f.Identity), info.APIVersion)
	}
	report()
	if info.Verb != "watch" {
		return func() {}
	}
	return func() { response.WhenServed(ctx, report) }
}

// conditional makes a write conditional on the evidence for its resource, so that the
// write fails if the resource has changed. It returns reads as they are.
func (p *Pool) conditional(req *http.Request, info *request.RequestInfo, f catalog.Found) *http.Request {
	switch info.Verb {
	case "get", "list", "watch":
		return req
	}
	c, _ := cluster.From(req.Context())
	var all []*store.Condition
	for _, e := range f.Evidence {
		all = append(all, &store.Condition{
			Of: keys.CustomResource(f.Content.GroupResource(), f.Identity), On: e.Key, Revision: e.Revision,
			Renew: func(ctx context.Context, _ int64) (int64, error) { return p.renewed(ctx, c, f, e.Key) },
		})
	}
	return req.WithContext(store.WithCondition(req.Context(), all...))
}

// renewed returns the current revision of a key of the evidence for f, which has changed.
// It fails unless f is still served as before.
func (p *Pool) renewed(ctx context.Context, c cluster.Name, f catalog.Found, on keys.Key) (int64, error) {
	p.config.Fresh(ctx)
	gr := f.Content.GroupResource()
	now, ok := p.config.Resolver.Find(c, gr)
	if ok && now.Content.Hash == f.Content.Hash && now.Identity == f.Identity && len(now.Evidence) == len(f.Evidence) {
		for _, e := range now.Evidence {
			if e.Key == on {
				return e.Revision, nil
			}
		}
	}
	return 0, outage.Unavailable(fmt.Sprintf("the definition of %s changed while this request was in progress; try again", gr))
}

func (p *Pool) serve(w http.ResponseWriter, req *http.Request, s catalog.Found) {
	gv := schema.GroupVersion{Group: s.Content.Definition.Spec.Group}
	info, _ := request.RequestInfoFrom(req.Context())
	gv.Version = info.APIVersion
	kind := gv.WithKind(s.Content.Definition.Status.AcceptedNames.Kind)
	translated := !s.Content.Native() && isWellKnown(kind)
	if undecodable(req) && !s.Content.Native() && !translated {
		err := negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
		return
	}
	if p.callsWebhook(s.Content.Definition) || s.Content.Ruled() {
		if err := fair.From(req.Context()).Compute(req.Context(), fair.Heavy); err != nil { // it may wait for the webhook, see [callers]
			responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
			return
		}
		defer p.callers.enter(req.Context(), webhookKey(req.Context(), s.Content))()
	}
	h, done, err := p.handler(req.Context(), s.Content)
	if err != nil {
		err = apierrors.NewInternalError(fmt.Errorf("cannot serve %s: %w", s.Content.GroupResource(), err))
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
		return
	}
	defer func() { response.WhenServed(req.Context(), done) }()
	defer upstream.ForgetPatterns()
	if translated {
		h = wellKnown{h, kind, p.config.MaxBody}
	}
	if info.Verb == "watch" {
		c, _ := cluster.From(req.Context())
		ctx, ended := p.config.Resolver.WatchContext(req.Context(), c, s)
		defer func() { response.WhenServed(ctx, ended) }()
		req = req.WithContext(ctx)
	}
	h.ServeHTTP(w, req)
}

// handler returns the handler of a content for the cluster of ctx. The caller must call
// done when the request has ended.
func (p *Pool) handler(ctx context.Context, c *catalog.Content) (h http.Handler, done func(), err error) {
	if c.Native() {
		h, err = offeredHandler(c)
		return h, func() {}, err
	}
	key := handlerKey{content: c.Hash}
	var calls webhook.AuthenticationInfoResolverWrapper
	if convert := p.config.Converters[c.GroupResource()]; convert != nil {
		calls = converts(converting{convert: convert})
	} else if rules := c.Rules(); rules != nil { // and not c, see [handler]
		return p.handlers.of(key, c, func(d *upstream.Definition) (http.Handler, error) { return p.buildRuled(d, rules) })
	} else if parts := c.Parts(); parts != nil {
		return p.handlers.of(key, c, func(d *upstream.Definition) (http.Handler, error) { return p.buildUnion(d, parts) })
	} else if catalog.CallsWebhook(c.Definition) {
		key = webhookKey(ctx, c)
		calls = webhooks(p.config.Dialer, p.callers, key, c.Definition)
	}
	return p.handlers.of(key, c, func(d *upstream.Definition) (http.Handler, error) { return p.build(d, p.config.Storage, calls) })
}

// webhookKey returns the key of the handler of a content with a webhook for the cluster of ctx.
func webhookKey(ctx context.Context, c *catalog.Content) handlerKey {
	at, _ := cluster.From(ctx)
	return handlerKey{c.Hash, at}
}

// callsWebhook reports whether objects of a definition are converted by a webhook of a tenant.
func (p *Pool) callsWebhook(crd *apiextensionsv1.CustomResourceDefinition) bool {
	gr := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
	return catalog.CallsWebhook(crd) && p.config.Converters[gr] == nil
}

func (p *Pool) build(d *upstream.Definition, from generic.RESTOptionsGetter, calls webhook.AuthenticationInfoResolverWrapper) (http.Handler, error) {
	if d.CRD.Spec.Group == "" {
		return p.buildCore(d, from)
	}
	h, err := newHandler(p.definitionHandler(d, from, calls), d.CRD)
	if err != nil {
		return nil, err
	}
	if p.callsWebhook(d.CRD) {
		return h, nil
	}
	return withPlainReads(h, d.CRD, p.config.MinRequestTimeout), nil
}

// buildRuled builds a handler whose objects are converted by rules.
func (p *Pool) buildRuled(d *upstream.Definition, r *catalog.Rules) (http.Handler, error) {
	rules := p.newRuled(d.CRD, r)
	of := p.definitionHandler(d, p.config.Storage, converts(converting{rules: rules}))
	of.Admission = checked{p.config.Admission, rules}
	return newHandler(of, d.CRD)
}

func (p *Pool) definitionHandler(d *upstream.Definition, from generic.RESTOptionsGetter, calls webhook.AuthenticationInfoResolverWrapper) upstream.DefinitionHandler {
	o := p.config
	return upstream.DefinitionHandler{
		Definition: d, Storage: from, Admission: o.Admission, Calls: calls, Authorizer: o.Authorizer,
		RequestTimeout: o.RequestTimeout, MinRequestTimeout: o.MinRequestTimeout, Models: p.models(), MaxBody: o.MaxBody,
	}
}

// Handlers returns the number of handlers.
func (p *Pool) Handlers() int { return p.handlers.len() }

// Close destroys all handlers. Call it after all requests have ended.
func (p *Pool) Close() { p.handlers.close() }
