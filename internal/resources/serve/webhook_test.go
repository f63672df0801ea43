package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/resources/catalog"
)

func withWebhook(group, url string) *apiextensionsv1.CustomResourceDefinition {
	crd := gadgets(group)
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
		},
	}
	return crd
}

// Clusters share the handler of a content, unless it calls a webhook: such calls must be assigned
// to a cluster.
func TestHandlersOfWebhooks(t *testing.T) {
	dialer := dial.New(dial.Options{})
	defer dialer.Close()
	for _, c := range []struct {
		crd  *apiextensionsv1.CustomResourceDefinition
		want int
	}{{gadgets("example.com"), 1}, {withWebhook("example.com", "https://example.com"), 2}} {
		content, err := catalog.NewContent(c.crd)
		if err != nil {
			t.Fatal(err)
		}
		p := NewPool(PoolConfig{
			Native: func(schema.GroupResource) bool { return false }, Fresh: func(context.Context) bool { return false },
			Models: func() map[string]*spec.Schema { return nil }, Dialer: dialer,
		})
		for _, name := range []cluster.Name{"a", "b", "a"} {
			ctx := request.WithRequestInfo(cluster.With(t.Context(), name), &request.RequestInfo{})
			_, done, err := p.handler(ctx, content)
			if err != nil {
				t.Fatal(err)
			}
			done()
		}
		if n := p.Handlers(); n != c.want {
			t.Errorf("%v: %d handlers for two clusters", c.crd.Spec.Conversion, n)
		}
		p.Close()
	}
}

// Upstream's clients of webhooks have no credentials of the server, and use the dialer for all
// addresses.
func TestClientsOfWebhooks(t *testing.T) {
	called := 0
	hook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called++ }))
	defer hook.Close()
	dialer := dial.New(dial.Options{Deny: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}})
	defer dialer.Close()
	resolver := webhooks(dialer, newCallers(), handlerKey{tenant: "a"}, withWebhook("example.com", hook.URL))(nil)
	var configs []*rest.Config
	for _, host := range []string{hook.Listener.Addr().String(), "kubernetes.default.svc:443"} {
		config, err := resolver.ClientConfigFor(host)
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, config)
	}
	service, err := resolver.ClientConfigForService("kubernetes", "default", 443)
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range append(configs, service) {
		if config.BearerToken+config.BearerTokenFile+config.CertFile+config.Username != "" || config.Timeout == 0 {
			t.Errorf("%v", config)
		}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Post(hook.URL, "application/json", strings.NewReader("{}"))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			t.Errorf("answered %s, %v", resp.Status, errors.Join(err, resp.Body.Close()))
			continue
		}
		var refused *dial.Refused
		if config == service {
			if !strings.Contains(err.Error(), `service "kubernetes" not found: services do not exist here; use clientConfig.url`) {
				t.Error(err)
			}
		} else if !errors.As(err, &refused) {
			t.Error(err)
		}
	}
	if called != 0 {
		t.Errorf("%d calls came through", called)
	}
}
