package server

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// chain is what a request passes before it is answered, written from the inside
// out, as upstream's is. It is spelled out here for two filters: upstream's
// impersonation remembers who may impersonate whom without remembering where, and
// the cluster must be known to all but the outermost.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	track := func(name string, outer func(http.Handler) http.Handler, h http.Handler) http.Handler {
		return filterlatency.TrackStarted(outer(filterlatency.TrackCompleted(h)), c.TracerProvider, name)
	}
	recorded := c.AuditBackend != nil && c.AuditPolicyRuleEvaluator != nil
	authz := c.Authorization.Authorizer
	fair := newFairness(c.MaxRequestBodyBytes, kinds[int]{c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight})
	h := fair.within(s.views.Enter(api), c) // inside authorization: a stranger takes nobody's share
	inside := fair.asked(s.withoutInactive(s.withoutUnavailable(h), c.LongRunningFunc))
	h = track("authorization", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthorization(h, decisive(authz), c.Serializer)
	}, inside)
	h = auth.WithScopes(s.views.WithAuthorization(auth.WithDeepReviews(s.withHomes(withBrokenPaths(h, authz), authz)), inside))
	h = s.withMounts(fair.ask(track("impersonation", func(h http.Handler) http.Handler {
		return s.views.WithoutImpersonation(auth.WithImpersonationLimits(auth.WithImpersonation(h, authz, c.Serializer), c.Serializer))
	}, h)))
	if recorded {
		h = inAudit(h)
	}
	h = track("audit", func(h http.Handler) http.Handler {
		return genericapifilters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	}, h)
	failed := filterlatency.TrackCompleted(genericapifilters.WithFailedAuthenticationAudit(
		genericapifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator))
	if s.config.Tracing.ConfigFile != "" { // else it would cost something for nothing
		h = genericapifilters.WithTracing(withSpanCluster(h), c.TracerProvider) // the authenticated influence sampling
	}
	h = track("authentication", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthentication(h, quiet(c.Authentication.Authenticator), failed, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	}, h)
	h = genericfilters.WithCORS(h, c.CorsAllowedOriginList, nil, nil, nil, "true")
	h = genericapifilters.WithWarningRecorder(h)
	h = genericfilters.WithTimeoutForNonLongRunningRequests(withRoom(h), c.LongRunningFunc)
	h = genericapifilters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	if recorded {
		h = audited(h)
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
	h = genericfilters.WithWatchTerminationDuringShutdown(h, shutdown{s.ctx}, c.WatchRequestWaitGroup) // watches begin when all inside has returned
	h = genericapifilters.WithRequestInfo(withoutWildcardGets(h), c.RequestInfoResolver)
	h = genericapifilters.WithRequestReceivedTimestamp(h)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	if recorded {
		h = s.withAuditCluster(h)
	}
	h = genericapifilters.WithAuditInit(h)
	h = withoutWildcardWrites(s.withMountAt(h))
	return withoutUselessBodies(s.outages(s.withViews(h, withCluster(h, s.resolve))))
}

func (s *Server) resolve(ctx context.Context, p cluster.Path) (cluster.Name, string) {
	return s.tree.Resolve(ctx, p) // there is one by now
}

// quiet has bad credentials refused like none, without the line in the log that
// upstream writes of each: who has a token that ended would fill it.
func quiet(a authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := a.AuthenticateRequest(req)
		if err != nil {
			klog.FromContext(req.Context()).V(4).Info("Credentials refused", "reason", err.Error())
			return nil, false, nil //nolint:nilerr // it was reported
		}
		return resp, ok, nil
	})
}

// shutdown tells watches when to end.
type shutdown struct{ ctx context.Context }

func (s shutdown) ShuttingDown() <-chan struct{} { return s.ctx.Done() }
