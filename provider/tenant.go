package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// ErrDisengaged is the error of reads and writes of a tenant after it has been disengaged: it no
// longer binds the export, or belongs to another replica now.
var ErrDisengaged = errors.New("the tenant is disengaged")

// A tenant is a logical cluster that binds the export. It has no goroutine and no cache. Its
// clients are made when they are first used.
type tenant struct {
	p      *Provider
	view   *view
	share  *share // nil without replicas
	name   string
	ctx    context.Context // of the engagement
	cancel context.CancelFunc

	once   sync.Once
	client client.Client
	direct client.Client
}

var _ cluster.Cluster = &tenant{}

func newTenant(ctx context.Context, p *Provider, v *view, s *share, name string) *tenant {
	t := &tenant{p: p, view: v, share: s, name: name}
	t.ctx, t.cancel = context.WithCancel(ctx)
	return t
}

// RoundTrip implements http.RoundTripper. It sends no requests for a tenant that is
// disengaged, so a late reconciler cannot write there.
func (t *tenant) RoundTrip(req *http.Request) (*http.Response, error) {
	transport := t.p.http.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	if t.ctx.Err() == nil {
		if resp, err := t.share.send(transport, req); !errors.Is(err, errNotHeld) {
			return resp, err
		}
	}
	if req.Body != nil {
		_ = req.Body.Close() // nothing was read
	}
	return nil, fmt.Errorf("%s: %w", t.name, ErrDisengaged)
}

// GetHTTPClient implements cluster.Cluster.
func (t *tenant) GetHTTPClient() *http.Client {
	return &http.Client{Transport: t, Timeout: t.p.http.Timeout}
}

// GetConfig implements cluster.Cluster. Clients made from it alone do not notice when the
// tenant is disengaged; use GetHTTPClient with it.
func (t *tenant) GetConfig() *rest.Config {
	c := rest.CopyConfig(t.view.config)
	c.Host = t.view.url + "/clusters/" + t.name
	return c
}

// GetCache implements cluster.Cluster.
func (t *tenant) GetCache() cache.Cache { return (*part)(t) }

// GetScheme implements cluster.Cluster.
func (t *tenant) GetScheme() *runtime.Scheme { return t.p.scheme }

// GetClient implements cluster.Cluster. The client reads from the cache and writes to the
// logical cluster of the tenant.
func (t *tenant) GetClient() client.Client {
	t.connect()
	return t.client
}

// GetAPIReader implements cluster.Cluster.
func (t *tenant) GetAPIReader() client.Reader {
	t.connect()
	return t.direct
}

func (t *tenant) connect() {
	t.once.Do(func() {
		o := client.Options{HTTPClient: t.GetHTTPClient(), Scheme: t.p.scheme, Mapper: t.view.mapper}
		var err error
		if t.direct, err = client.New(t.GetConfig(), o); err == nil {
			o.Cache = &client.CacheOptions{Reader: t.GetCache()}
			t.client, err = client.New(t.GetConfig(), o)
		}
		if err != nil {
			panic(err) // the same configuration has worked for the view
		}
	})
}

// GetFieldIndexer implements cluster.Cluster. An index is for all tenants.
func (t *tenant) GetFieldIndexer() client.FieldIndexer { return (*part)(t) }

// GetRESTMapper implements cluster.Cluster.
func (t *tenant) GetRESTMapper() meta.RESTMapper { return t.view.mapper }

// Start implements cluster.Cluster. There is nothing to start.
func (t *tenant) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
