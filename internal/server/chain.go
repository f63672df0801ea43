package server

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
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
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/auth/reach"
	"github.com/unforked/kcp/internal/auth/recheck"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/observe/logs"
	"github.com/unforked/kcp/internal/observe/record"
	"github.com/unforked/kcp/internal/request/bounds"
	"github.com/unforked/kcp/internal/request/connections"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/request/flow"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/tenancy/mounts"
	"github.com/unforked/kcp/internal/tenancy/offline"
	"github.com/unforked/kcp/internal/tenancy/tree"
	"github.com/unforked/kcp/internal/view"
)

// A filter is one step of the chain of handlers.
type filter struct {
	name string
	off  bool // by configuration
	wrap func(next http.Handler) http.Handler
}

// folded returns api behind filters. The first filter gets a request first.
func folded(api http.Handler, filters []filter) http.Handler {
	for _, f := range slices.Backward(filters) {
		if !f.off {
			api = f.wrap(api)
		}
	}
	return api
}

// chain returns the API handler behind the filters of a request. They are those of upstream's
// DefaultBuildHandlerChain and further ones. The chain is not upstream's for two reasons. Upstream's
// impersonation filter caches decisions without the cluster. And the cluster must be in the context
// before all filters but the first.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	return folded(api, s.filters(c))
}

// filters returns the filters of a request, in the order in which it passes them. Each may rely on
// those before it, so the order is a part of the server's security.
func (s *Server) filters(c *genericapiserver.Config) []filter {
	recorded := c.AuditBackend != nil && c.AuditPolicyRuleEvaluator != nil
	tenants := s.limits(c)
	return slices.Concat(s.locating(recorded), s.bounding(c, tenants, recorded), s.deciding(c, tenants, recorded))
}

// locating returns the filters that find the cluster of a request. All others run inside.
func (s *Server) locating(recorded bool) []filter {
	return []filter{
		// A request that is too large costs nothing more.
		{"bounds", false, bounds.Within},
		{"log", false, func(h http.Handler) http.Handler { return logs.Within(h, s.pathOf) }},
		{"panics in the log", false, logs.WithPanics},
		{"accepted form", false, edge.WithAccept},
		{"read limits", false, connections.WithReadLimits},
		{"bodies of reads", false, flow.WithoutUselessBodies},
		// Requests of peers belong to no cluster and no user.
		{"peers", s.peers == nil, s.peers.Within},
		// Outages of etcd, and other servers' changes of the tree, replace refusals of all filters inside.
		{"outages", !s.store.Shared(), func(h http.Handler) http.Handler { return edge.WithOutages(h, s.resolve) }},
		{"cluster", false, func(h http.Handler) http.Handler {
			return s.withViews(h, edge.WithCluster(h, s.resolve, reach.Paths()))
		}},
		{"writes to all clusters", false, edge.WithoutWildcardWrites},
		// The path may lead to a workspace of another server.
		{"mount", false, s.mountProxy().WithMount},
		{"audit event", false, genericapifilters.WithAuditInit},
		{"cluster in the audit event", !recorded, func(h http.Handler) http.Handler {
			return record.WithCluster(h, func(c cluster.Name) cluster.Path { return s.tree.PathOf(c) })
		}},
	}
}

// bounding returns the filters that bound how a request is served, for every user.
func (s *Server) bounding(c *genericapiserver.Config, tenants *flow.Filters, recorded bool) []filter {
	return []filter{
		// It counts aborted requests. The next one logs their panics with the stack.
		{"panics", false, func(h http.Handler) http.Handler {
			return genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
		}},
		{"panics of filters in the log", false, logs.WithPanics},
		{"time", false, genericapifilters.WithRequestReceivedTimestamp},
		{"request info", false, func(h http.Handler) http.Handler {
			return genericapifilters.WithRequestInfo(h, view.Watches{RequestInfoResolver: c.RequestInfoResolver})
		}},
		{"gets from all clusters", false, edge.WithoutWildcardGets},
		// Watches are served after all filters inside this one have returned.
		{"end of watches", false, func(h http.Handler) http.Handler {
			return genericfilters.WithWatchTerminationDuringShutdown(h, shutdown{s.ctx}, c.WatchRequestWaitGroup)
		}},
		{"goroutine", false, func(h http.Handler) http.Handler { return routine.WithRoutine(h, c.LongRunningFunc) }},
		{"latency", false, genericapifilters.WithLatencyTrackers},
		{"request log", false, genericfilters.WithHTTPLogging},
		{"retry after", !c.ShutdownSendRetryAfter, func(h http.Handler) http.Handler {
			return genericfilters.WithRetryAfter(h, s.ctx.Done())
		}},
		{"strict transport security", false, func(h http.Handler) http.Handler { return genericfilters.WithHSTS(h, c.HSTSDirectives) }},
		{"cache control", false, genericapifilters.WithCacheControl},
		{"goaway", c.SecureServing.DisableHTTP2 || c.GoawayChance <= 0, func(h http.Handler) http.Handler {
			return genericfilters.WithProbabilisticGoaway(h, c.GoawayChance)
		}},
		{"wait group", false, func(h http.Handler) http.Handler {
			return genericfilters.WithWaitGroup(h, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
		}},
		// Audit events have the URL with the cluster, the handlers that of Kubernetes.
		{"requested URL", !recorded, edge.WithRequestedURL},
		{"deadline", false, func(h http.Handler) http.Handler {
			return genericapifilters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
		}},
		// The timeout filter may return while a goroutine still serves the request.
		{"end of the work", false, tenants.UntilEnded},
		{"timeout", false, func(h http.Handler) http.Handler {
			return genericfilters.WithTimeoutForNonLongRunningRequests(h, c.LongRunningFunc)
		}},
		{"panics of the goroutine in the log", false, logs.WithPanics},
		{"stack", false, edge.WithStack},
		{"work", false, flow.Ending},
		// The timeout filter makes the addition of warnings safe.
		{"warnings", false, genericapifilters.WithWarningRecorder},
		{"cross-origin requests", false, func(h http.Handler) http.Handler {
			return genericfilters.WithCORS(h, c.CorsAllowedOriginList, nil, nil, nil, "true")
		}},
	}
}

// deciding returns the filters that find the user of a request, and decide whether and when it is
// served.
func (s *Server) deciding(c *genericapiserver.Config, tenants *flow.Filters, recorded bool) []filter {
	rights := c.Authorization.Authorizer
	checker := &recheck.Checker{
		Every: s.config.RightsEvery, LongRunning: c.LongRunningFunc, Authenticator: quiet(c.Authentication.Authenticator), Authorizer: rights,
		Refuses: s.views.Refuses, Tenants: tenants,
	}
	return []filter{
		{"sent header", false, checker.WithSentHeader},
		s.authentication(c),
		// Only authenticated clients influence which requests are sampled. Without a collector, spans
		// would only cost time.
		{"tracing", s.config.Tracing.ConfigFile == "", func(h http.Handler) http.Handler {
			return genericapifilters.WithTracing(record.WithSpan(h), c.TracerProvider)
		}},
		tracked(c, "audit", func(h http.Handler) http.Handler {
			return genericapifilters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
		}),
		{"served URL", !recorded, edge.WithServedURL},
		// The server of a mounted workspace authorizes its requests.
		{"mount proxy", false, s.mountProxy().WithProxy},
		{"readable refusals", false, edge.WithReadableRefusals},
		// Impersonation and authorization cost processor time, for users who may have no rights.
		{"limits of the user", false, tenants.Ask},
		tracked(c, "impersonation", func(h http.Handler) http.Handler {
			return s.views.WithoutImpersonation(authz.WithImpersonationLimits(authz.WithImpersonation(h, rights, c.Serializer), c.Serializer))
		}),
		// The filters inside check for system:masters alone.
		{"scopes", false, authz.WithScopes},
		// Requests for views have authorization of their own.
		{"authorization of views", false, func(h http.Handler) http.Handler {
			return s.views.WithAuthorization(folded(h, s.authorizing(c)), h)
		}},
		// It ends watches and streams later on.
		{"rights of open requests", false, checker.WithRights},
		// The state of a cluster is shown only to users who may enter it.
		{"offline clusters", false, func(h http.Handler) http.Handler { return s.withoutOffline(h, c) }},
		// Refused requests do not use a tenant's share.
		{"limits of the tenant", false, func(h http.Handler) http.Handler { return tenants.Within(h, c, s.levels) }},
		{"counts", false, s.counted},
		{"views", false, s.views.Enter},
	}
}

// authorizing returns the filters that authorize requests other than those for views.
func (s *Server) authorizing(c *genericapiserver.Config) []filter {
	rights := c.Authorization.Authorizer
	return []filter{
		{"deep reviews", false, authz.WithDeepReviews},
		// Users need no right in root for their home.
		{"homes", false, func(h http.Handler) http.Handler { return s.config.Homes.With(h, rights, s.home) }},
		{"broken paths", false, func(h http.Handler) http.Handler { return edge.WithBrokenPaths(h, rights) }},
		tracked(c, "authorization", func(h http.Handler) http.Handler {
			return genericapifilters.WithAuthorization(h, record.Decisive(rights), c.Serializer)
		}),
	}
}

// authentication returns the filter that authenticates a request.
func (s *Server) authentication(c *genericapiserver.Config) filter {
	failed := filterlatency.TrackCompleted(genericapifilters.WithFailedAuthenticationAudit(
		genericapifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator))
	return tracked(c, "authentication", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthentication(h, quiet(c.Authentication.Authenticator), failed, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	})
}

// tracked returns a filter whose latency is measured.
func tracked(c *genericapiserver.Config, name string, wrap func(http.Handler) http.Handler) filter {
	return filter{name, false, func(next http.Handler) http.Handler {
		return filterlatency.TrackStarted(wrap(filterlatency.TrackCompleted(next)), c.TracerProvider, name)
	}}
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
		At:          func(p cluster.Path) (cluster.Name, string, *tree.Mount) { return s.tree.MountAt(p) },
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
