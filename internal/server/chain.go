package server

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/routine"

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
	h := genericfilters.WithMaxInFlightLimit(api, maxReads, maxWrites, c.LongRunningFunc)
	h = newFairness().limit(h, c.LongRunningFunc) // inside authorization: a stranger takes nobody's share
	h = track("authorization", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	}, h)
	h = withBrokenPaths(h, c.Authorization.Authorizer)
	h = track("impersonation", func(h http.Handler) http.Handler {
		return auth.WithImpersonationLimits(auth.WithImpersonation(h, c.Authorization.Authorizer, c.Serializer), c.Serializer)
	}, h)
	h = track("audit", func(h http.Handler) http.Handler {
		return genericapifilters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	}, h)
	failed := filterlatency.TrackCompleted(genericapifilters.WithFailedAuthenticationAudit(
		genericapifilters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator))
	h = track("authentication", func(h http.Handler) http.Handler {
		return genericapifilters.WithAuthentication(h, c.Authentication.Authenticator, failed, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	}, h)
	h = genericapifilters.WithWarningRecorder(h)
	h = genericfilters.WithTimeoutForNonLongRunningRequests(h, c.LongRunningFunc)
	h = genericapifilters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = genericfilters.WithWaitGroup(h, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
	h = genericfilters.WithWatchTerminationDuringShutdown(h, shutdown{s.ctx}, c.WatchRequestWaitGroup)
	h = genericapifilters.WithCacheControl(h)
	h = genericfilters.WithHTTPLogging(h)
	h = genericapifilters.WithLatencyTrackers(h)
	h = routine.WithRoutine(h, c.LongRunningFunc)
	h = genericapifilters.WithRequestInfo(h, c.RequestInfoResolver)
	h = genericapifilters.WithRequestReceivedTimestamp(h)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	h = genericapifilters.WithAuditInit(h)
	h = withoutWildcardWrites(h)
	return withCluster(h, func(ctx context.Context, p cluster.Path) (cluster.Name, string) { return s.tree.Resolve(ctx, p) })
}

// shutdown tells watches when to end.
type shutdown struct{ ctx context.Context }

func (s shutdown) ShuttingDown() <-chan struct{} { return s.ctx.Done() }
