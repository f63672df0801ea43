// Package server assembles all other packages into a running server. It hides the order
// in which they start and stop, and the chain of handlers that a request passes through.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/admit/hooks"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/auth/lookup"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/controllers/garbage"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/network/peers"
	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/request/flow"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/resources/discovery"
	"github.com/unforked/kcp/internal/resources/native"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/evolve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/sharing/usage"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/storage/encryption"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/watchcache"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/mounts"
	"github.com/unforked/kcp/internal/tenancy/offline"
	"github.com/unforked/kcp/internal/tenancy/removal"
	"github.com/unforked/kcp/internal/tenancy/tree"
	"github.com/unforked/kcp/internal/upstream"
	"github.com/unforked/kcp/internal/view"
)

const (
	drain                 = 10 * time.Second // how long open requests and calls may take at shutdown
	finalBookmarksTimeout = 2 * time.Second
	readyPoll             = 5 * time.Millisecond
)

// A Server serves any number of logical clusters. The steps of [New] set its fields, in about the
// order in which they are here.
type Server struct {
	config Config

	// The listener, and the certificates of the server.
	serving    *genericapiserver.SecureServingInfo
	served     changes                  // of the serving certificates
	own        *credentials.Certificate // nil if the flags name a certificate
	ca         *tenancy.RootCA          // certificates that verify the listener's certificate
	peers      *peers.Peers             // nil without handlers for them, or with an etcd in this process
	encryption *encryption.Running

	// Storage, and the custom resources that clusters define.
	store       *store.Store
	caches      *watchcache.Caches
	resolver    *catalog.Resolver // of the custom resources of each cluster: those of definitions, and of the bindings of apis
	definitions *define.Definitions

	// Users, and what they may do.
	rbac       *lookup.RBAC
	namespaces *feed.Table[store.Namespace]
	quotas     *limits.Quotas
	signing    authn.ServiceAccountOptions // of accounts; changed by followKeys
	accounts   *authn.ServiceAccounts
	admins     authn.AdminTokens
	clients    *authn.ClientCertificates
	authn      *authn.Authenticators
	authz      *authz.Authorizer
	rules      admit.Rules
	hooks      *hooks.Hooks
	kinds      func() *catalog.Kinds // of all groups

	// The API server, its handlers and filters.
	generic    *genericapiserver.GenericAPIServer
	loopback   *rest.Config
	api        http.Handler // the end of the handler chain
	natives    *native.Installed
	pool       *serve.Pool
	dialer     *dial.Dialer // for calls to addresses that tenants configure
	discovery  *discovery.Discovery
	shares     *fair.Shares
	levels     flow.Levels
	views      *view.Views
	lifecycles *view.Lifecycles
	exports    *view.Exports
	schemas    *view.Schemas

	// Workspaces, shared APIs and loops.
	given      *native.Given
	tree       *tree.Tree
	types      *tree.Types
	workspaces *tenancy.Workspaces
	remover    *removal.Remover
	apis       *bind.APIs
	virtual    *virtual.Storage
	checker    *evolve.Checker
	offline    *offline.Clusters
	issuers    *lookup.Issuers
	tallies    *usage.Requests
	meter      *usage.Meter
	references *garbage.References
	loops      []control.Loop

	// Start and stop.
	ctx      context.Context // lasts until Close; every goroutine of the server ends with it
	cancel   context.CancelFunc
	accepts  context.Context // of the API server, which ends before ctx
	retire   context.CancelFunc
	running  sync.WaitGroup // loops and the API server
	requests sync.WaitGroup // in-process requests
	closing  sync.Once
	started  bool          // whether the server has begun to serve
	looping  chan struct{} // closed when the loops run
	fatal    chan error
}

// New starts a server and returns when it is ready. ctx bounds the start only.
func New(ctx context.Context, c Config) (*Server, error) {
	c.complete()
	c.Shard = cmp.Or(c.Shard, tenancy.RootShard)
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Server{config: c, natives: &native.Installed{}, fatal: make(chan error, 2), looping: make(chan struct{}), shares: flow.NewShares(c.Processors)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.accepts, s.retire = context.WithCancel(s.ctx)
	for _, step := range []func(context.Context) error{
		s.prepareRules,
		s.startProfiler,
		s.prepareListener,
		s.prepareEncryption,
		s.open, // the store
		s.prepareServing,
		s.preparePeers,
		s.prepareAccess,
		s.prepareHooks,
		s.prepareAPI, // builds the chain of handlers; no request comes before start
		s.assemble,
		s.start,
	} {
		if err := step(ctx); err != nil {
			s.abandon()
			return nil, err
		}
	}
	return s, nil
}

// Close stops the server and returns when all its goroutines have ended. It may be called
// several times.
func (s *Server) Close() {
	s.closing.Do(func() {
		s.lingerInShutdown()
		s.endWatches()
		s.cancel()
		if s.dialer != nil { // open requests may wait for its calls
			defer time.AfterFunc(drain, s.dialer.Close).Stop()
		}
		s.running.Wait()
		s.requests.Wait()
		if s.dialer != nil {
			s.dialer.Close()
		}
		if s.pool != nil {
			s.pool.Close()
		}
		if s.authn != nil {
			s.authn.Close()
		}
		if s.caches != nil {
			s.caches.Close()
		}
		if s.store != nil {
			s.store.Close()
		}
	})
}

// abandon stops a server that was never ready. No client knows it, so it does not linger.
func (s *Server) abandon() {
	if s.generic != nil {
		s.generic.ShutdownDelayDuration = 0 // the API server reads it when its context ends
	}
	s.cancel()
	s.Close()
}

// lingerInShutdown makes the server report that it is not ready, and serves requests for
// the configured delay. In that time load balancers notice.
func (s *Server) lingerInShutdown() {
	s.retire()
	if delay := s.config.Requests.ShutdownDelayDuration; delay > 0 && s.started {
		select {
		case <-time.After(delay):
		case <-s.ctx.Done():
		}
	}
}

func (s *Server) prepareEncryption(ctx context.Context) (err error) {
	s.encryption, err = s.config.Encryption.Start(ctx, s.ctx)
	return err
}

func (s *Server) open(ctx context.Context) (err error) {
	s.store, err = store.Open(ctx, store.Options{
		Dir: s.config.Dir, Etcd: s.config.Etcd, Prefix: s.config.Prefix, Version: upstream.Minor, NoSync: s.config.NoSync,
		Encryption: s.encryption.Transformers(), RenewEvery: encryptioncontroller.EncryptionConfigFileChangePollDuration, TenantShare: s.config.TenantStoragePercent,
	})
	if err != nil {
		return err
	}
	s.caches, err = watchcache.New(ctx, s.store, watchcache.Options{DeleteCollectionWorkers: s.config.DeleteCollectionWorkers})
	s.resolver = catalog.NewResolver(func(c cluster.Name) *catalog.Shape { return s.given.Of(c) })
	s.resolver.Fresh = s.store.Feed().Fresh
	s.definitions = define.New(s.store, s.resolver)
	return err
}

// endWatches ends the watches that asked for bookmarks, each with a final bookmark. It runs before
// anything is stopped.
func (s *Server) endWatches() {
	if !s.started || s.ctx.Err() != nil {
		return // no watch is open, or the server has failed
	}
	ctx, stop := context.WithTimeout(s.ctx, finalBookmarksTimeout)
	defer stop()
	s.caches.EndWatches(ctx)
}

// Failed returns a channel that receives the error that stopped the server.
func (s *Server) Failed() <-chan error { return s.fatal }

// prepareAPI builds the API server, without the tree of workspaces.
func (s *Server) prepareAPI(ctx context.Context) error {
	effective := upstream.NewVersion()
	cfg := s.genericConfig(effective)
	s.serving.ClientCA = s.authn.ClientCA
	cfg.SecureServing = s.serving
	var err error
	if s.views, err = s.newViews(); err != nil {
		return err
	}
	if err := s.config.apply(ctx, cfg); err != nil {
		return err
	}
	// The limit is a variable of the process, which SetGlobals has set. Another server of the process
	// may be applying a patch.
	cfg.JSONPatchMaxCopyBytes = 0
	if s.generic, err = cfg.Complete(nil).New("kcp", genericapiserver.NewEmptyDelegateWithCustomHandler(notFound())); err != nil {
		return err
	}
	if err := errors.Join(s.installDiscoveryOfIssuer(), s.generic.AddPostStartHook("kcp-start-controllers", s.awaitLoops)); err != nil {
		return err
	}
	if err := s.installGroups(cfg, effective); err != nil {
		return err
	}
	s.dialer = s.newDialer()
	s.pool = s.newPool(cfg)
	s.installEtcdHealth()
	s.levels.Install(s.generic.Handler.NonGoRestfulMux)
	s.installOperatorPaths()
	s.generic.Handler.NonGoRestfulMux.HandlePrefix("/apis/", http.NotFoundHandler()) // instead of a list of paths
	s.discovery = discovery.NewDiscovery(s.generic, cfg, s.resolver.ShapeOf)
	s.discovery.Subresources = append(serve.Subresources{s.usageOfExports(), s.usageOfClusters()}, s.config.Subresources...)
	s.api = s.discovery.Subresources.Within(s.config.Unstored.Within(s.discovery.Wrap(s.pool.Wrap(s.api))))
	return nil
}

// newPool returns the pool that serves custom resources.
func (s *Server) newPool(cfg *genericapiserver.Config) *serve.Pool {
	return serve.NewPool(serve.PoolConfig{
		Resolver: s.resolver, Native: s.isOwn, Fresh: s.store.Feed().Fresh,
		Storage: s.caches.Customs(customConfig), Metadata: s.caches.CustomMetadata(customConfig), Admission: s.hooks, Authorizer: s.authz,
		Models: func() map[string]*spec.Schema { return s.natives.Models }, RequestTimeout: cfg.RequestTimeout, MaxBody: cfg.MaxRequestBodyBytes,
		MinRequestTimeout: time.Duration(cfg.MinRequestTimeout) * time.Second,
		Converters:        exports.Converters(),
		Requested:         s.requested,
		ConversionTimeout: s.config.ConversionTimeout,
		Origin: func(ctx context.Context, c cluster.Name, gr schema.GroupResource, f catalog.Found) (*serve.Origin, error) {
			return s.virtual.Origin(ctx, c, gr, f)
		},
		Dialer: s.dialer,
	})
}

// isOwn reports whether a resource is built in, or reserved for a built-in one.
func (s *Server) isOwn(gr schema.GroupResource) bool { return s.natives.Own[gr] }

func customConfig(gr schema.GroupResource, _ runtime.Object) (*storagebackend.ConfigForResource, error) {
	return storagebackend.NewDefaultConfig("/", unstructured.UnstructuredJSONScheme).ForResource(gr), nil
}

func (s *Server) genericConfig(effective basecompatibility.EffectiveVersion) *genericapiserver.Config {
	cfg := genericapiserver.NewConfig(legacyscheme.Codecs)
	cfg.EffectiveVersion = effective
	cfg.ExternalAddress = s.externalAddress()
	s.loopback = &rest.Config{Host: "http://kcp", QPS: -1, Transport: http.DefaultTransport}
	cfg.LoopbackClientConfig = s.loopback
	cfg.Authentication.Authenticator = s.authn
	cfg.Authentication.APIAudiences = s.authn.Audiences
	cfg.Authentication.RequestHeaderConfig = s.authn.RequestHeader
	cfg.Authorization.Authorizer = s.authorizers()
	cfg.AdmissionControl = s.hooks
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, apiextensions.Scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIConfig.Info.Title = "kcp"
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIV3Config.Info.Title = "kcp"
	cfg.SkipOpenAPIInstallation = true // [discovery.Discovery] installs it
	cfg.OpenAPIConfig.SecurityDefinitions, cfg.OpenAPIV3Config.SecuritySchemes = bearerTokens()
	cfg.FlowControl = nil
	cfg.LongRunningFunc = orOperation(s.config.Subresources.LongRunning(mounts.OrUpgrade(cfg.LongRunningFunc)))
	s.addHealthChecks(cfg)
	cfg.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		s.api, s.levels = api, flow.NewLevels(c)
		end := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.api.ServeHTTP(w, req) }) // prepareAPI adds to s.api
		return s.chain(end, c)
	}
	return cfg
}

// externalAddress returns the host and port of ExternalURL. Without a listener it returns
// a placeholder: only this process sends requests.
func (s *Server) externalAddress() string {
	u, err := url.Parse(s.config.ExternalURL)
	if err != nil || u.Host == "" {
		return "kcp:443"
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
}

// bearerTokens describes bearer tokens for OpenAPI v2 and v3.
func bearerTokens() (*spec.SecurityDefinitions, spec3.SecuritySchemes) {
	const name, in, what = "authorization", "header", "Bearer Token authentication"
	v2 := spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{Type: "apiKey", Name: name, In: in, Description: what}}
	v3 := spec3.SecurityScheme{SecuritySchemeProps: spec3.SecuritySchemeProps{Type: "apiKey", Name: name, In: in, Description: what}}
	return &spec.SecurityDefinitions{"BearerToken": &v2}, spec3.SecuritySchemes{"BearerToken": &v3}
}

// start reads the stored objects, creates the root workspace if it is missing, starts all
// goroutines, and returns when the server is ready.
func (s *Server) start(ctx context.Context) error {
	prepared := s.generic.PrepareRun()
	if err := s.store.Feed().Start(ctx); err != nil {
		return fmt.Errorf("read the stored objects: %w", err)
	}
	if err := s.setUp(ctx); err != nil {
		return err
	}
	if err := s.writeKubeconfig(ctx); err != nil {
		return err
	}
	s.running.Go(func() { s.encryption.Reload(s.ctx) })
	s.started = true
	s.running.Go(func() {
		if err := prepared.RunWithContext(s.accepts); err != nil {
			s.fatal <- err
			s.cancel()
		}
	})
	s.running.Go(func() {
		select {
		case err := <-s.store.Lost():
			s.fatal <- err
			s.cancel()
		case <-s.ctx.Done():
		}
	})
	s.running.Go(func() { s.authn.Run(s.ctx) })
	s.running.Go(func() { s.followKeys(s.ctx) })
	s.running.Go(func() { s.followServing(s.ctx) })
	s.running.Go(func() { _ = s.levels.Run(s.ctx.Done()) }) // it fails only if the server stops before it has begun
	s.running.Go(func() { s.authz.Run(s.ctx) })
	if err := s.runLoops(); err != nil {
		return err
	}
	return s.waitReady(ctx)
}

// waitReady waits until /readyz answers 200.
func (s *Server) waitReady(ctx context.Context) error {
	client := &http.Client{Transport: s.transport(s.ctx, System())}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kcp/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			err = errors.Join(err, resp.Body.Close())
		}
		if err == nil && resp.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-s.fatal:
			return err
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", errors.Join(ctx.Err(), err))
		}
	}
}
