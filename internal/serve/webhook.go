package serve

import (
	"fmt"
	"net/http"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/dial"
)

const (
	// webhookAgent is what kube-apiserver calls itself to webhooks.
	webhookAgent = "kube-apiserver-admission"
	// webhookTime is how long kube-apiserver waits for a conversion.
	webhookTime = 30 * time.Second
)

// callsWebhook reports whether objects of a definition are converted by a webhook.
func callsWebhook(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
}

// webhooks returns how the converter of a definition calls webhooks for a tenant.
// Upstream's converter has no context to find the tenant in. Neither has its
// configuration the bundle of the definition, which is taken from there.
func webhooks(d *dial.Dialer, tenant cluster.Name, crd *apiextensionsv1.CustomResourceDefinition) webhook.AuthenticationInfoResolverWrapper {
	// Upstream's own resolver would bring the credentials of the pod that the server
	// runs in to whom the tenant calls kubernetes.default.svc.
	return func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(string) (*rest.Config, error) {
				calls, err := d.For(tenant, crd.Spec.Conversion.Webhook.ClientConfig.CABundle)
				if err != nil {
					calls = failing{err} // upstream, which reads the bundle itself, says so first
				}
				return webhookConfig(calls), nil
			},
			ClientConfigForServiceFunc: func(name, _ string, _ int) (*rest.Config, error) {
				return webhookConfig(failing{fmt.Errorf("service %q not found: services do not exist here; use clientConfig.url", name)}), nil
			},
		}
	}
}

// webhookConfig returns a configuration of which upstream uses all but the transport.
func webhookConfig(calls http.RoundTripper) *rest.Config {
	return &rest.Config{
		UserAgent: webhookAgent,
		Timeout:   webhookTime,
		// Warnings would be written to the server's log.
		WarningHandler: rest.NoWarnings{},
		// Upstream makes a transport that is never used, and remembers those that it
		// makes, but for ones with a proxy.
		Proxy:         http.ProxyURL(nil),
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return calls },
	}
}

// failing makes no calls.
type failing struct{ err error }

// RoundTrip implements [http.RoundTripper].
func (f failing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close() // nobody reads it
	}
	return nil, f.err
}
