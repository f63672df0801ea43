package authz

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// Keys in the user's extra that hold the logical cluster of the request for an
// authorization webhook. Both have the same value. Users cannot set them.
const (
	WebhookClusterKey = "authorization.kubernetes.io/cluster-name"

	// WebhookKcpClusterKey is the key that webhooks for the existing kcp read.
	WebhookKcpClusterKey = "authorization.kcp.io/cluster-name"
)

// A webhookAuthorizer calls a webhook with the authorizer of Kubernetes. That authorizer
// caches answers by the review sent, which includes the cluster. So an answer for one
// cluster is never used for another.
type webhookAuthorizer struct {
	name  string
	inner *webhook.WebhookAuthorizer
}

type webhookMetrics struct {
	webhookmetrics.NoopRequestMetrics
	webhookmetrics.WebhookMetrics
	authorizationcel.MatcherMetrics
}

func newWebhookAuthorizer(name string, c *apiserver.WebhookConfiguration, compiler authorizationcel.Compiler) (*webhookAuthorizer, error) {
	client, err := webhookClient(c.ConnectionInfo)
	if err != nil {
		return nil, err
	}
	client.Timeout = c.Timeout.Duration
	onError := authorizer.DecisionNoOpinion
	if c.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	allowed, refused := c.AuthorizedTTL.Duration, c.UnauthorizedTTL.Duration
	if !c.CacheAuthorizedRequests {
		allowed = 0
	}
	if !c.CacheUnauthorizedRequests {
		refused = 0
	}
	inner, err := webhook.New(client, c.SubjectAccessReviewVersion, allowed, refused, *genericoptions.DefaultAuthWebhookRetryBackoff(), onError,
		c.MatchConditions, name, webhookMetrics{WebhookMetrics: webhookmetrics.NewWebhookMetrics(), MatcherMetrics: authorizationcel.NewMatcherMetrics()}, compiler)
	return &webhookAuthorizer{name, inner}, err
}

func webhookClient(c apiserver.WebhookConnectionInfo) (*rest.Config, error) {
	if c.Type == apiserver.AuthorizationWebhookConnectionInfoTypeInCluster {
		client, err := rest.InClusterConfig()
		if err == nil {
			client.QPS = -1
		}
		return client, err
	}
	client, err := webhookutil.LoadKubeconfig(*c.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of the webhook: %w", err)
	}
	return client, nil
}

// byWebhook returns the webhook's decision on the first of the user's identities that it has an
// opinion on. Requests outside of all clusters, such as GET /version, are sent without a
// cluster. If only system:masters are allowed here, the webhook is not called, and the
// later steps decide.
func (z *Authorizer) byWebhook(ctx context.Context, w *webhookAuthorizer, a authorizer.Attributes) verdict {
	c, decided := z.place(ctx, a)
	switch {
	case decided == nil, decided.decision == authorizer.DecisionNoOpinion: // outside of all clusters
	case decided.decision == authorizer.DecisionDeny:
		decided.decision, decided.steps, decided.closed = authorizer.DecisionNoOpinion, nil, true
		return *decided
	default:
		return *decided
	}
	var v verdict
	auth.Effective(c, a.GetUser(), func(u user.Info) bool {
		d, reason, err := w.inner.Authorize(ctx, As(a, webhookUser(c, u)))
		v.decision, v.reason = d, "the webhook "+w.name+": "+reason
		if err != nil {
			// The library logs the cause. Users must not see the address of the webhook.
			v.err = fmt.Errorf("the authorization webhook %q did not decide; try again later", w.name)
			v.reason = v.err.Error()
		}
		return err == nil && d == authorizer.DecisionNoOpinion
	})
	z.step(&v, Step{StepWebhook, v.decision, v.reason})
	return v
}

// webhookUser returns u as sent to a webhook for a request in cluster c. An empty c stands for a
// request outside of all clusters.
func webhookUser(c cluster.Name, u user.Info) user.Info {
	if c != "" {
		u = auth.AccountIn(c, u)
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	maps.DeleteFunc(extra, func(key string, _ []string) bool {
		return strings.EqualFold(key, WebhookClusterKey) || strings.EqualFold(key, WebhookKcpClusterKey) || strings.HasPrefix(key, markPrefix)
	})
	if c != "" {
		extra[WebhookClusterKey] = []string{string(c)}
		extra[WebhookKcpClusterKey] = []string{string(c)}
	}
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}
