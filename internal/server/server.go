// Package server puts the parts together: it is the only package that knows all of
// them, in which order they start, and how a request passes through them.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/dial"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/view"
)

const (
	drain     = 10 * time.Second
	farewell  = 2 * time.Second // for the last bookmarks of watches
	readyPoll = 5 * time.Millisecond
)

// Config is everything that can be chosen about a server. Its zero value, with a
// directory, works.
type Config struct {
	// Dir holds the data and credentials.
	Dir string
	// Etcd is where the data is; its zero value keeps it in Dir.
	Etcd store.Etcd
	// Prefix of all keys in etcd.
	Prefix string
	// NoSync trades safety in a crash of the machine for speed, for tests.
	NoSync bool
	// Listener accepts TLS connections; nil serves this process only.
	Listener net.Listener
	// ExternalURL is how clients reach the listener.
	ExternalURL string
	// Kubeconfig is the file for the administrators' credentials, empty for none.
	Kubeconfig string
	// Access says who else is let in, and who is asked what they may do.
	Access Access
	// Mounts says who the server is to what serves mounted workspaces.
	Mounts MountProxy
	// Homes says who has a home workspace.
	Homes HomeWorkspaces
	// Groups are the built-in API groups to serve; all if empty.
	Groups []string
	// Kinds are served, besides the built-in ones, in every cluster.
	Kinds []*apiextensionsv1.CustomResourceDefinition
	// EgressAllow and EgressDeny are ranges of addresses that clusters may, and may not,
	// have the server call. The narrowest range decides.
	EgressAllow, EgressDeny []netip.Prefix
	// Rules are admission rules besides the built-in ones.
	Rules []admit.Rule
	// Authorizers are asked when nobody else has allowed or denied a request.
	Authorizers []authorizer.Authorizer
	// Loops returns further loops, once the server can be talked to.
	Loops func(*Server) ([]control.Loop, error)
	// Operation is what those choose who run the server.
	Operation
}

// A Server serves any number of logical clusters.
type Server struct {
	config   Config
	store    *store.Store
	generic  *genericapiserver.GenericAPIServer
	authn    *auth.Authenticators
	authz    *auth.Authorizer
	accounts *auth.ServiceAccounts
	admins   *auth.Admins
	rules    admit.Rules
	pool     *serve.Pool
	dialer   *dial.Dialer // for calls that tenants cause
	// definitions of custom resources in all clusters.
	definitions *serve.Definitions
	front       http.Handler // what the handler chain ends in
	given       *given
	rbac        *rbacTables
	loopback    *rest.Config
	serving     *genericapiserver.SecureServingInfo
	ca          []byte // PEM, of what verifies the certificate of the listener
	encryption  *encryption
	models      map[string]*spec.Schema
	natives     []serve.Kind                  // that are compiled in
	own         map[schema.GroupResource]bool // resources that are compiled in

	namespaces *store.Table[*metav1.Time]
	loops      []control.Loop
	tree       *tenancy.Tree
	inactive   *inactive
	issuers    *workspaceIssuers // of workspaces
	views      *view.Views
	discovery  *serve.Discovery
	types      *tenancy.Types
	workspaces *tenancy.Workspaces

	ctx      context.Context // of everything that runs, ended by Close
	cancel   context.CancelFunc
	accepts  context.Context // of the API server, which ends first
	retire   context.CancelFunc
	running  sync.WaitGroup // loops and the API server
	requests sync.WaitGroup // in process
	closing  sync.Once
	started  bool          // to serve
	looping  chan struct{} // closed once the loops run
	fatal    chan error
}

// New starts a server. It is ready when New returns.
func New(ctx context.Context, c Config) (*Server, error) {
	c.complete()
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &Server{config: c, own: map[schema.GroupResource]bool{}, fatal: make(chan error, 2), looping: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.accepts, s.retire = context.WithCancel(s.ctx)
	for _, step := range []func(context.Context) error{
		s.prepareRules, s.startProfiler, s.prepareListener, s.prepareEncryption, s.open, s.prepareServing, s.prepareAccess, s.prepareAPI, s.prepareTree, s.start,
	} {
		if err := step(ctx); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close stops the server and returns when everything has ended.
func (s *Server) Close() {
	s.closing.Do(func() {
		s.lingerInShutdown()
		s.endWatches()
		s.cancel()
		if s.dialer != nil { // its calls may be of requests that are waited for
			defer time.AfterFunc(drain, s.dialer.Close).Stop()
		}
		s.running.Wait()
		s.requests.Wait()
		if s.dialer != nil {
			s.dialer.Close() // watches may wait for it
		}
		if s.pool != nil {
			s.pool.Close()
		}
		if s.authn != nil {
			s.authn.Close()
		}
		if s.store != nil {
			s.store.Close()
		}
	})
}

// lingerInShutdown serves on for a while in which the server calls itself not ready,
// so that load balancers notice.
func (s *Server) lingerInShutdown() {
	s.retire()
	if delay := s.config.Requests.ShutdownDelayDuration; delay > 0 && s.started {
		select {
		case <-time.After(delay):
		case <-s.ctx.Done():
		}
	}
}

// open opens the store.
func (s *Server) open(ctx context.Context) (err error) {
	s.store, err = store.Open(ctx, store.Options{
		Dir: s.config.Dir, Etcd: s.config.Etcd, Prefix: s.config.Prefix, Version: kubernetesVersion, NoSync: s.config.NoSync,
		Encryption: s.encryption.transformers(), RenewEvery: encryptioncontroller.EncryptionConfigFileChangePollDuration, DeleteCollectionWorkers: s.config.DeleteCollectionWorkers,
	})
	if err == nil {
		s.definitions = serve.NewDefinitions(s.store, func(c cluster.Name) *serve.Shape { return s.given.of(c) })
	}
	return err
}

// endWatches gives watches a last bookmark, while everything still runs.
func (s *Server) endWatches() {
	if !s.started || s.ctx.Err() != nil {
		return // nobody watches, or nothing works any more
	}
	ctx, stop := context.WithTimeout(s.ctx, farewell)
	defer stop()
	s.store.EndWatches(ctx)
}

// Failed returns a channel that gets the error that ends serving.
func (s *Server) Failed() <-chan error { return s.fatal }

func (s *Server) exists(ctx context.Context, c cluster.Name) bool {
	state, err := s.store.State(ctx, c)
	return err == nil && state != store.Gone
}

// prepareAPI builds the API server with everything in it but its clusters.
func (s *Server) prepareAPI(ctx context.Context) error {
	effective := newEffectiveVersion()
	cfg := s.genericConfig(effective)
	s.serving.ClientCA = s.authn.ClientCA
	cfg.SecureServing = s.serving
	s.views = s.newViews()
	err := s.config.apply(ctx, cfg)
	if err != nil {
		return err
	}
	// What is nowhere is answered as kube-apiserver does, and not with an index.
	nowhere := notfoundhandler.New(legacyscheme.Codecs, filters.NoMuxAndDiscoveryIncompleteKey)
	if s.generic, err = cfg.Complete(nil).New("kcp", genericapiserver.NewEmptyDelegateWithCustomHandler(nowhere)); err != nil {
		return err
	}
	if err := errors.Join(s.installDiscoveryOfIssuer(), s.generic.AddPostStartHook("kcp-start-controllers", s.awaitLoops)); err != nil {
		return err
	}
	s.installQuestions()
	natives, err := nativeStorage(s.store, effective, newSharing(string(s.ca), s.definitions.Share).share)
	if err != nil {
		return err
	}
	if err := s.installNatives(natives); err != nil {
		return err
	}
	s.dialer = s.newDialer()
	s.pool = serve.NewPool(serve.PoolConfig{
		Definitions: s.definitions, Native: s.isOwn, Fresh: s.store.Spine().Fresh,
		Storage: s.store.Customs(customConfig), Metadata: s.store.CustomMetadata(customConfig), Admission: s.rules, Authorizer: s.authz,
		Models: func() map[string]*spec.Schema { return s.models }, RequestTimeout: cfg.RequestTimeout, MaxBody: cfg.MaxRequestBodyBytes,
		MinRequestTimeout: time.Duration(cfg.MinRequestTimeout) * time.Second,
		Dialer:            s.dialer,
	})
	s.generic.Handler.NonGoRestfulMux.HandlePrefix("/apis/", http.NotFoundHandler()) // instead of a list of paths
	s.discovery = serve.NewDiscovery(s.generic, s.definitions.ShapeOf)
	s.front = s.discovery.Wrap(s.pool.Wrap(s.front))
	return nil
}

// isOwn reports whether a resource is compiled into the server.
func (s *Server) isOwn(gr schema.GroupResource) bool { return s.own[gr] }

func customConfig(gr schema.GroupResource, _ runtime.Object) (*storagebackend.ConfigForResource, error) {
	return storagebackend.NewDefaultConfig("/", unstructured.UnstructuredJSONScheme).ForResource(gr), nil
}

func (s *Server) genericConfig(effective basecompatibility.EffectiveVersion) *genericapiserver.Config {
	cfg := genericapiserver.NewConfig(legacyscheme.Codecs)
	cfg.EffectiveVersion = effective
	cfg.ExternalAddress = "kcp:443" // with a port, as there may be no listener to take one from
	s.loopback = &rest.Config{Host: "http://kcp", QPS: -1, Transport: http.DefaultTransport}
	cfg.LoopbackClientConfig = s.loopback
	cfg.Authentication.Authenticator = s.authn
	cfg.Authentication.APIAudiences = s.authn.Audiences
	cfg.Authentication.RequestHeaderConfig = s.authn.RequestHeader
	cfg.Authorization.Authorizer = s.authorizers()
	cfg.AdmissionControl = s.rules
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, apiextensions.Scheme)
	cfg.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIConfig.Info.Title = "kcp"
	cfg.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	cfg.OpenAPIV3Config.Info.Title = "kcp"
	cfg.OpenAPIConfig.SecurityDefinitions, cfg.OpenAPIV3Config.SecuritySchemes = credentials()
	cfg.FlowControl = nil
	cfg.LongRunningFunc = orUpgrade(cfg.LongRunningFunc)
	cfg.HealthzChecks = append(cfg.HealthzChecks, healthz.NamedCheck("spine", s.spineReady))
	cfg.HealthzChecks = append(cfg.HealthzChecks, s.encryption.health()...)
	cfg.ReadyzChecks = append(cfg.ReadyzChecks, s.encryption.health()...)
	if s.store.Several() {
		cfg.ReadyzChecks = append(cfg.ReadyzChecks, healthz.NamedCheck("etcd", s.etcdReady))
	}
	cfg.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		s.front = api
		front := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.front.ServeHTTP(w, req) })
		return s.chain(front, c)
	}
	return cfg
}

// credentials is what OpenAPI says about how clients come.
func credentials() (*spec.SecurityDefinitions, spec3.SecuritySchemes) {
	const name, in, what = "authorization", "header", "Bearer Token authentication"
	v2 := spec.SecurityScheme{SecuritySchemeProps: spec.SecuritySchemeProps{Type: "apiKey", Name: name, In: in, Description: what}}
	v3 := spec3.SecurityScheme{SecuritySchemeProps: spec3.SecuritySchemeProps{Type: "apiKey", Name: name, In: in, Description: what}}
	return &spec.SecurityDefinitions{"BearerToken": &v2}, spec3.SecuritySchemes{"BearerToken": &v3}
}

func (s *Server) spineReady(*http.Request) error {
	select {
	case <-s.store.Spine().Ready():
		return nil
	default:
		return errors.New("still reading what is stored")
	}
}

// start reads what is stored, makes what a first start must, and begins to serve.
func (s *Server) start(ctx context.Context) error {
	prepared := s.generic.PrepareRun()
	if err := s.store.Spine().Start(ctx); err != nil {
		return fmt.Errorf("read the stored objects: %w", err)
	}
	if err := s.workspaces.Bootstrap(ctx); err != nil {
		return fmt.Errorf("set up the root workspace: %w", err)
	}
	if err := s.workspaces.AllowHomes(ctx, s.config.Homes.creators()); err != nil {
		return fmt.Errorf("say who has a home workspace: %w", err)
	}
	if err := s.admins.WriteKubeconfig(s.config.ExternalURL, s.ca); err != nil {
		return err
	}
	s.running.Go(func() { s.encryption.reload(s.ctx) })
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
	s.running.Go(func() { s.authz.Run(s.ctx) })
	if err := s.runLoops(); err != nil {
		return err
	}
	return s.waitReady(ctx)
}

// waitReady waits until the API server calls itself ready.
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
