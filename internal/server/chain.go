package server

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/klog/v2"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/edge"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/flow"
	"github.com/unforked/kcp/internal/logs"
	"github.com/unforked/kcp/internal/mounts"
	"github.com/unforked/kcp/internal/offline"
	"github.com/unforked/kcp/internal/reach"
	"github.com/unforked/kcp/internal/record"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/view"
)

// chain wraps the API handler with the filters of a request, from the innermost to the
// outermost. It copies upstream's DefaultBuildHandlerChain for two reasons. Upstream's
// impersonation filter caches decisions without the cluster. And the cluster must be in
// the context before all filters but the outermost.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	track := func(name string, outer func(http.Handler) http.Handler, h http.Handler) http.Handler {
		return filterlatency.TrackStarted(outer(filterlatency.TrackCompleted(h)), c.TracerProvider, name)
	}
	recorded := c.AuditBackend != nil && c.AuditPolicyRuleEvaluator != nil
	authz := c.Authorization.Authorizer
	tenants := s.limits(c)
	h := tenants.Within(s.counted(s.views.Enter(api)), c, s.levels) // inside authorization: refused requests do not use a tenant's share
	inside := s.withoutOffline(h, c)
	h = track("authorization", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthorization(h, record.Decisive(authz), c.Serializer)
	}, inside)
	h = auth.WithScopes(s.views.WithAuthorization(auth.WithDeepReviews(s.config.Homes.With(edge.WithBrokenPaths(h, authz), authz, s.home)), inside))
	h = s.mountProxy().WithProxy(edge.WithReadableRefusals(tenants.Ask(track("impersonation", func(h http.Handler) http.Handler {
		return s.views.WithoutImpersonation(auth.WithImpersonationLimits(auth.WithImpersonation(h, authz, c.Serializer), c.Serializer))
	}, h))))
	if recorded {
		h = edge.WithServedURL(h)
	}
	h = track("audit", func(h http.Handler) http.Handler {
		return genericapifilters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	}, h)
	failed := filterlatency.TrackCompleted(genericapifilters.WithFailedAuthenticationAudit(
		genericapifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator))
	if s.config.Tracing.ConfigFile != "" { // without a collector, spans would only cost time
		h = genericapifilters.WithTracing(record.WithSpan(h), c.TracerProvider) // only authenticated clients influence sampling
	}
	h = track("authentication", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthentication(h, quiet(c.Authentication.Authenticator), failed, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	}, h)
	h = genericfilters.WithCORS(h, c.CorsAllowedOriginList, nil, nil, nil, "true")
	h = genericapifilters.WithWarningRecorder(h)
	h = tenants.UntilEnded(genericfilters.WithTimeoutForNonLongRunningRequests(logs.WithPanics(edge.WithStack(flow.Ending(h))), c.LongRunningFunc))
	h = genericapifilters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	if recorded {
		h = edge.WithRequestedURL(h)
	}
	h = genericfilters.WithWaitGroup(h, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
	if !c.SecureServing.DisableHTTP2 && c.GoawayChance > 0 {
		h = genericfilters.WithProbabilisticGoaway(h, c.GoawayChance)
	}
	h = genericapifilters.WithCacheControl(h)
	h = genericfilters.WithHSTS(h, c.HSTSDirectives)
	if c.ShutdownSendRetryAfter {
		h = genericfilters.WithRetryAfter(h, s.ctx.Done())
	}
	h = genericfilters.WithHTTPLogging(h)
	h = genericapifilters.WithLatencyTrackers(h)
	h = routine.WithRoutine(h, c.LongRunningFunc)
	h = genericfilters.WithWatchTerminationDuringShutdown(h, shutdown{s.ctx}, c.WatchRequestWaitGroup) // watches are served after all filters inside this one have returned
	h = genericapifilters.WithRequestInfo(edge.WithoutWildcardGets(h), view.Watches{RequestInfoResolver: c.RequestInfoResolver})
	h = genericapifilters.WithRequestReceivedTimestamp(h)
	h = genericfilters.WithPanicRecovery(logs.WithPanics(h), c.RequestInfoResolver) // counts aborted requests
	return s.located(h, recorded)
}

// located wraps h with the filters that find the cluster of a request. All others run inside.
func (s *Server) located(h http.Handler, recorded bool) http.Handler {
	if recorded {
		h = record.WithCluster(h, func(c cluster.Name) cluster.Path { return s.tree.PathOf(c) })
	}
	h = genericapifilters.WithAuditInit(h)
	h = edge.WithoutWildcardWrites(s.mountProxy().WithMount(h))
	h = s.withViews(h, edge.WithCluster(h, s.resolve, reach.Paths()))
	if s.store.Several() {
		h = edge.WithOutages(h)
	}
	if s.peers != nil {
		h = s.peers.Within(h)
	}
	return edge.WithReadLimits(flow.WithoutUselessBodies(h))
}

// limits returns the filters that limit the requests of tenants.
func (s *Server) limits(c *genericapiserver.Config) *flow.Filters {
	return &flow.Filters{
		Shares: s.shares, Tenant: s.tenantOf, Stopped: s.ctx, MaxBody: c.MaxRequestBodyBytes,
		Usage: func(c cluster.Name, gr schema.GroupResource) feed.Usage {
			return s.store.Feed().Ledger().Named(c, gr)
		},
	}
}

// tenantOf returns the cluster that stands for the tenant of c, and whether c exists.
func (s *Server) tenantOf(c cluster.Name) (cluster.Name, bool) {
	if s.tree == nil {
		return c, false // the server is starting
	}
	if _, ok := s.tree.Cluster(c); ok {
		return s.tree.Tenant(c), true
	}
	return c, s.exists(s.ctx, c) // a cluster without a Workspace
}

// lend implements [serve.PoolConfig.Lend].
func (s *Server) lend(c cluster.Name, call func()) {
	if t, ok := s.tenantOf(c); ok {
		s.shares.Lend(flow.TenantKey(t), call)
		return
	}
	call()
}

// withoutOffline refuses requests to clusters that do not serve. s.offline is set after the
// chain is built.
func (s *Server) withoutOffline(next http.Handler, c *genericapiserver.Config) http.Handler {
	h := sync.OnceValue(func() http.Handler {
		return offline.WithoutMissing(s.offline.WithoutInactive(s.offline.WithoutUnavailable(next), c.LongRunningFunc), s.store)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { h().ServeHTTP(w, req) })
}

// home returns the home workspace of a user.
func (s *Server) home(ctx context.Context, u user.Info, permitted func() error) (*tenancyapi.Workspace, error) {
	return s.workspaces.Home(ctx, u, permitted)
}

// mountProxy returns the proxy of mounted workspaces. s.tree and s.dialer are set after the chain
// is built.
func (s *Server) mountProxy() *mounts.Proxy {
	return &mounts.Proxy{
		Certificate: s.config.Mounts,
		At:          func(p cluster.Path) (cluster.Name, string, *tenancy.Mount) { return s.tree.MountAt(p) },
		Fresh:       func(ctx context.Context) bool { return s.store.Feed().Fresh(ctx) },
		Relay: func(parent cluster.Name, ca []byte, certificate func() (*tls.Certificate, error)) (http.RoundTripper, error) {
			return s.dialer.Relay(parent, ca, certificate)
		},
	}
}

func (s *Server) resolve(ctx context.Context, p cluster.Path) (cluster.Name, string) {
	return s.tree.Resolve(ctx, p) // s.tree is set after the chain is built
}

// quiet treats invalid credentials as missing ones. Upstream would log an error for each
// such request, and a client with an expired token would fill the log.
func quiet(a authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := a.AuthenticateRequest(req)
		if err != nil {
			klog.FromContext(req.Context()).V(4).Info("Credentials refused", "reason", err.Error())
			return nil, false, nil //nolint:nilerr // it is logged
		}
		return resp, ok, nil
	})
}

// shutdown signals the end of the server to watches.
type shutdown struct{ ctx context.Context }

func (s shutdown) ShuttingDown() <-chan struct{} { return s.ctx.Done() }
