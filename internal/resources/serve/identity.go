package serve

import (
	"context"
	"net/http"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
)

type requestedIdentityKey struct{}

// WithRequestedIdentity returns a context for a request whose URL names a resource with the
// identity of its export.
func WithRequestedIdentity(ctx context.Context, identity string) context.Context {
	return context.WithValue(ctx, requestedIdentityKey{}, identity)
}

// requestedIdentity returns the identity in the URL of a request, and whether it has one.
func requestedIdentity(ctx context.Context) (string, bool) {
	identity, ok := ctx.Value(requestedIdentityKey{}).(string)
	return identity, ok
}

// identified serves a request for a resource with an identity, and refuses it if there is no
// such resource.
func (p *Pool) identified(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, identity string) {
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	c, _ := cluster.From(req.Context())
	found, ok := p.config.Resolver.Identified(c, gr, identity)
	if !ok && p.config.Fresh(req.Context()) {
		found, ok = p.config.Resolver.Identified(c, gr, identity)
	}
	if !ok || p.config.Native(gr) {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		responsewriters.ErrorNegotiated(unservedIdentity(gr, identity), apiextensions.Codecs, gv, w, req)
		return
	}
	p.found(w, req, info, found)
}
