package serve

import (
	"fmt"
	"net/http"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/network/dial"
)

// webhookTime is kube-apiserver's timeout of a conversion.
const webhookTime = 30 * time.Second

// webhooks returns the resolver that the converter of crd uses to call webhooks for the
// requests of a handler. Upstream's converter passes neither a context with the tenant nor the CA bundle,
// so the resolver holds both.
func webhooks(d *dial.Dialer, by *callers, key handlerKey, crd *apiextensionsv1.CustomResourceDefinition) webhook.AuthenticationInfoResolverWrapper {
	// Upstream's resolver would send the credentials of the server's own pod to a
	// webhook that the tenant names kubernetes.default.svc.
	return func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(string) (*rest.Config, error) {
				calls, err := d.For(key.tenant, crd.Spec.Conversion.Webhook.ClientConfig.CABundle)
				if err != nil {
					calls = dial.Failing(err) // upstream parses the bundle too, and reports the error first
				}
				return webhookConfig(lending{calls, func(call func()) { by.lend(key, call) }}), nil
			},
			ClientConfigForServiceFunc: func(name, _ string, _ int) (*rest.Config, error) {
				return webhookConfig(dial.Failing(fmt.Errorf("service %q not found: services do not exist here; use clientConfig.url", name))), nil
			},
		}
	}
}

// webhookConfig returns a client configuration that makes requests with calls.
func webhookConfig(calls http.RoundTripper) *rest.Config {
	return &rest.Config{
		UserAgent: dial.WebhookAgent,
		Timeout:   webhookTime,
		// By default, warnings go to the server's log.
		WarningHandler: rest.NoWarnings{},
		// Upstream builds a transport that is not used. It caches transports for ever,
		// except those with a proxy.
		Proxy:         http.ProxyURL(nil),
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return calls },
	}
}

// lending frees the processor seat of the waiting request during a call.
type lending struct {
	calls http.RoundTripper
	lend  func(call func())
}

// RoundTrip implements [http.RoundTripper].
func (l lending) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	l.lend(func() { resp, err = l.calls.RoundTrip(req) })
	return resp, err
}
