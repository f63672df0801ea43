package hooks

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/request/fair"
)

// waitsKey is the key of a [fair.Waits] in the context of a request.
type waitsKey struct{}

// calls returns the resolver with which upstream calls webhooks.
func (v view) calls() webhook.AuthenticationInfoResolverWrapper {
	bundles := v.bundles()
	// Upstream's resolver would send the credentials of the server's own pod to a webhook
	// that the tenant names kubernetes.default.svc.
	return func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(string) (*rest.Config, error) {
				return &rest.Config{
					UserAgent: dial.WebhookAgent,
					// By default, warnings go to the server's log.
					WarningHandler: rest.NoWarnings{},
					// Upstream caches transports for ever, except those with a proxy.
					Proxy: http.ProxyURL(nil),
					WrapTransport: func(made http.RoundTripper) http.RoundTripper {
						calls, err := v.transport(made, bundles)
						if err != nil {
							return dial.Failing(err)
						}
						return calls
					},
				}, nil
			},
			ClientConfigForServiceFunc: func(name, _ string, _ int) (*rest.Config, error) {
				return nil, fmt.Errorf("service %q not found: services do not exist here; use clientConfig.url", name)
			},
		}
	}
}

// bundles returns the CA bundles of the configurations.
func (v view) bundles() [][]byte {
	var all [][]byte
	add := func(c admissionregistrationv1.WebhookClientConfig) {
		if len(c.CABundle) > 0 {
			all = append(all, c.CABundle)
		}
	}
	for _, c := range listed[*admissionregistrationv1.MutatingWebhookConfiguration](v.configurations) {
		for _, w := range c.Webhooks {
			add(w.ClientConfig)
		}
	}
	for _, c := range listed[*admissionregistrationv1.ValidatingWebhookConfiguration](v.configurations) {
		for _, w := range c.Webhooks {
			add(w.ClientConfig)
		}
	}
	return all
}

// transport returns the transport of the dialer instead of one that upstream made, with the
// same certificate authorities. Upstream tells only the transport which webhook it is for: it
// has the certificates of the webhook's CA bundle.
func (v view) transport(made http.RoundTripper, bundles [][]byte) (http.RoundTripper, error) {
	t, ok := made.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("bug: a transport for webhooks is a %T", made)
	}
	var bundle []byte
	if t.TLSClientConfig != nil && t.TLSClientConfig.RootCAs != nil {
		if bundle = same(t.TLSClientConfig.RootCAs, bundles); bundle == nil {
			return nil, errors.New("bug: a transport for webhooks has unknown certificate authorities")
		}
	}
	calls, err := v.config.Dialer().For(v.from, bundle)
	if err != nil {
		return nil, err
	}
	return waiting{calls}, nil
}

// same returns the bundle with the certificates of a pool.
func same(pool *x509.CertPool, bundles [][]byte) []byte {
	for _, b := range bundles {
		other := x509.NewCertPool()
		if other.AppendCertsFromPEM(bytes.TrimSpace(b)) && other.Equal(pool) {
			return b
		}
	}
	return nil
}

// waiting frees the processor seat of a request during calls.
type waiting struct{ calls http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (w waiting) RoundTrip(req *http.Request) (*http.Response, error) {
	waits, ok := req.Context().Value(waitsKey{}).(*fair.Waits)
	if !ok {
		return w.calls.RoundTrip(req)
	}
	end := waits.Begin(req.Context())
	resp, err := w.calls.RoundTrip(req)
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = &lateBody{resp.Body, end}
	return resp, nil
}

// lateBody is the body of a response, which may come slowly.
type lateBody struct {
	io.ReadCloser
	end func()
}

// Close implements [io.Closer].
func (b *lateBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
