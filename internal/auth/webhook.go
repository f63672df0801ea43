package auth

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

	"github.com/unforked/kcp/internal/cluster"
)

// WebhookClusterKey in the extra of a user tells an authorization webhook which
// logical cluster a request is for. Nobody else can set it.
const WebhookClusterKey = "authorization.kubernetes.io/cluster-name"

// A webhookAuthorizer asks a webhook. It is that of Kubernetes, which remembers
// answers by what it asked: as the cluster is a part of that, no answer for one
// cluster is taken for another.
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

// asked decides as the webhook does about the first it has an opinion on of those
// whose rights the user has. It is asked only where anybody but system:masters may do
// anything at all.
func (z *Authorizer) asked(ctx context.Context, w *webhookAuthorizer, a authorizer.Attributes) verdict {
	c, refused := z.place(ctx, a)
	if refused != nil {
		return *refused
	}
	var v verdict
	effective(c, a.GetUser(), func(u user.Info) bool {
		d, reason, err := w.inner.Authorize(ctx, toldAttributes{a, told(c, u)})
		v.decision, v.reason = d, "the webhook "+w.name+": "+reason
		if err != nil {
			// What went wrong is logged; where the webhook is concerns no user.
			v.err = fmt.Errorf("the authorization webhook %q did not decide; try again later", w.name)
			v.reason = v.err.Error()
		}
		return err == nil && d == authorizer.DecisionNoOpinion
	})
	z.step(&v, Step{StepWebhook, v.decision, v.reason})
	return v
}

// toldAttributes are attributes as a webhook is told them.
type toldAttributes struct {
	authorizer.Attributes
	user user.Info
}

func (a toldAttributes) GetUser() user.Info { return a.user }

// told returns u as a webhook is told of him for a request in cluster c, or for one to
// what the process has once if c is empty.
func told(c cluster.Name, u user.Info) user.Info {
	if c != "" {
		u = seenFrom(c, u)
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	maps.DeleteFunc(extra, func(key string, _ []string) bool {
		return strings.EqualFold(key, WebhookClusterKey) || strings.HasPrefix(key, markPrefix)
	})
	if c != "" {
		extra[WebhookClusterKey] = []string{string(c)}
	}
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}
