// Package issuers authenticates the users of identity providers by their JSON web tokens, with
// Kubernetes' authenticator of OpenID Connect. [Providers] are those that the operator configures for
// the server, and [WorkspaceProviders] those that tenants configure for workspaces.
//
// It hides how keys are fetched, how many connections are kept, and which limits hold for tenants. The
// rest of authentication uses only authenticators of tokens. The order of authenticators, and the rules
// for names of service accounts, are in package authn.
package issuers

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth"
)

const (
	healthTimeout = time.Minute            // timeout of the first answers of changed identity providers
	healthPoll    = 100 * time.Millisecond // period of checking for these answers
	callTimeout   = 10 * time.Second       // of one request to an identity provider
)

// Providers are the identity providers of the server. Flags, or a file that may change, configure
// them.
type Providers struct {
	options   *kubeoptions.BuiltInAuthenticationOptions
	own       []string // issuers of this server, which no identity provider may use
	anonymous apiserver.AnonymousAuthConfig
	config    *apiserver.AuthenticationConfiguration
	algorithm []string
	seen      []byte // last content of the file that was loaded or rejected

	mu      sync.RWMutex // guards current
	current *loaded
}

// NewProviders reads the identity providers that o configures. None may have one of the issuers in
// own, which are the server's. It connects to none: see [Providers.Start].
func NewProviders(o *kubeoptions.BuiltInAuthenticationOptions, own []string) (*Providers, error) {
	i := &Providers{
		options: &kubeoptions.BuiltInAuthenticationOptions{
			AuthenticationConfigFile: o.AuthenticationConfigFile, OIDC: o.OIDC, Anonymous: o.Anonymous,
		},
		own: own,
	}
	return i, i.read()
}

// read reads the flags, or the file if there is one.
func (i *Providers) read() error {
	if o := i.options.OIDC; o != nil && o.CAFile != "" {
		if _, err := certutil.NewPool(o.CAFile); err != nil {
			return fmt.Errorf("--oidc-ca-file: %w", err)
		}
	}
	config, err := i.options.ToAuthenticationConfig()
	switch {
	case err != nil && i.options.AuthenticationConfigFile != "":
		return fmt.Errorf("--authentication-config: %w", err)
	case err != nil:
		return fmt.Errorf("--oidc-*: %w", err)
	}
	compiler := authenticationcel.NewDefaultCompiler()
	for n, jwt := range config.AuthenticationConfig.JWT {
		if _, errs := apiservervalidation.CompileAndValidateJWTAuthenticator(compiler, jwt, i.own); len(errs) > 0 {
			return fmt.Errorf("identity provider %s: %w", jwt.Issuer.URL, errs.ToAggregate())
		}
		if jwt.Issuer.EgressSelectorType != "" {
			return fmt.Errorf("--authentication-config: jwt[%d].issuer.egressSelectorType: there are no egress selectors; remove it", n)
		}
		if _, err := clientOf(jwt); err != nil {
			return err
		}
	}
	if known := sets.New(oidc.AllValidSigningAlgorithms()...); !known.HasAll(config.OIDCSigningAlgs...) {
		return fmt.Errorf("--oidc-signing-algs: %v are not all known; use some of %v", config.OIDCSigningAlgs, sets.List(known))
	}
	i.config, i.algorithm, i.anonymous = config.AuthenticationConfig, config.OIDCSigningAlgs, config.Anonymous
	i.seen = []byte(config.AuthenticationConfigData)
	return nil
}

// Anonymous returns the configuration of requests without credentials, which may be in the same file.
func (i *Providers) Anonymous() apiserver.AnonymousAuthConfig { return i.anonymous }

// Wanted reports whether identity providers are configured, or a file may add some later.
func (i *Providers) Wanted() bool {
	return i.options.AuthenticationConfigFile != "" || len(i.config.JWT) > 0
}

// Start begins to fetch the keys of the identity providers. The caller must call Close if it returns
// no error.
func (i *Providers) Start() error {
	var err error
	i.current, err = i.connect()
	return err
}

// AuthenticateToken implements [authenticator.Token]. It must follow Start.
func (i *Providers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	i.mu.RLock()
	p := i.current
	p.requests.Add(1)
	i.mu.RUnlock()
	defer p.requests.Done()
	return p.AuthenticateToken(ctx, token)
}

// Run reloads the file when it changes, until ctx ends.
func (i *Providers) Run(ctx context.Context) {
	file := i.options.AuthenticationConfigFile
	if file == "" {
		return
	}
	log := klog.FromContext(ctx)
	metrics.RegisterMetrics()
	filesystem.WatchUntil(ctx, auth.FilePoll, file, func() {
		switch changed, err := i.reload(ctx); {
		case err != nil && ctx.Err() == nil:
			metrics.RecordAuthenticationConfigAutomaticReloadFailure("")
			log.Error(err, "cannot use the changed identity providers; the previous ones stay in use", "file", file)
		case changed && err == nil:
			metrics.RecordAuthenticationConfigAutomaticReloadSuccess("", string(i.seen))
			log.Info("identity providers changed", "file", file)
		}
	}, func(err error) { log.Error(err, "cannot watch the file of identity providers", "file", file) })
}

// reload loads the file if its content is new and all of its identity providers answer. It
// reports whether it did.
func (i *Providers) reload(ctx context.Context) (bool, error) {
	data, err := os.ReadFile(i.options.AuthenticationConfigFile)
	if err != nil {
		return false, err
	}
	if bytes.Equal(data, i.seen) {
		return false, nil
	}
	next := &Providers{options: i.options, own: i.own}
	if err := next.read(); err != nil {
		i.seen = data // reading the same content again would fail again
		return false, err
	}
	if !reflect.DeepEqual(i.config.Anonymous, next.config.Anonymous) {
		i.seen = data
		return false, errors.New("the configuration of anonymous requests changed; restart the server to apply it")
	}
	p, err := next.connect()
	if err != nil {
		i.seen = data
		return false, err
	}
	if err := p.healthy(ctx); err != nil {
		p.close()
		return false, err
	}
	i.mu.Lock()
	before := i.current
	i.current = p
	i.mu.Unlock()
	gone := urls(i.config).Difference(urls(next.config))
	i.config, i.algorithm, i.seen = next.config, next.algorithm, next.seen
	before.requests.Wait()
	before.close()
	for url := range gone {
		oidc.DeleteJWKSFetchMetrics(url, "")
	}
	return true, nil
}

func urls(c *apiserver.AuthenticationConfiguration) sets.Set[string] {
	all := sets.New[string]()
	for _, jwt := range c.JWT {
		all.Insert(jwt.Issuer.URL)
	}
	return all
}

// Close ends the connections to the identity providers.
func (i *Providers) Close() {
	i.mu.RLock()
	defer i.mu.RUnlock()
	i.current.close()
}

// loaded are the connected identity providers of one version of the configuration.
type loaded struct {
	authenticator.Token

	health   []func() error
	clients  []*http.Client
	requests sync.WaitGroup // requests in progress
	cancel   context.CancelFunc
}

// connect starts fetching the keys of the identity providers.
func (i *Providers) connect() (*loaded, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &loaded{cancel: cancel}
	var all []authenticator.Token
	for _, jwt := range i.config.JWT {
		client, err := clientOf(jwt)
		if err != nil {
			p.close()
			return nil, err
		}
		p.clients = append(p.clients, client)
		one, err := oidc.New(ctx, oidc.Options{
			JWTAuthenticator: jwt, Client: client, SupportedSigningAlgs: i.algorithm, DisallowedIssuers: i.own,
		})
		if err != nil {
			p.close()
			return nil, fmt.Errorf("identity provider %s: %w", jwt.Issuer.URL, err)
		}
		p.health = append(p.health, one.HealthCheck)
		all = append(all, one)
	}
	p.Token = tokenunion.NewFailOnError(all...)
	if o := i.options.OIDC; i.options.AuthenticationConfigFile == "" && o != nil {
		// A file has to set every prefix, if only to ""; flags may leave prefixes out.
		prefix := i.config.JWT[0].ClaimMappings.Username.Prefix
		p.Token = withoutReserved(p.Token, prefix == nil || *prefix == "", o.GroupsPrefix == "")
	}
	return p, nil
}

// healthy waits until the keys of all identity providers are fetched, at most healthTimeout.
func (p *loaded) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	tick := time.NewTicker(healthPoll)
	defer tick.Stop()
	for {
		var errs []error
		for _, check := range p.health {
			errs = append(errs, check())
		}
		err := utilerrors.NewAggregate(errs)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (p *loaded) close() {
	p.cancel()
	for _, c := range p.clients {
		c.CloseIdleConnections()
	}
}

// clientOf returns an HTTP client of its own for an identity provider, so that close
// can close its connections.
func clientOf(jwt apiserver.JWTAuthenticator) (*http.Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := jwt.Issuer.CertificateAuthority; ca != "" {
		roots, err := certutil.NewPoolFromBytes([]byte(ca))
		if err != nil {
			return nil, fmt.Errorf("identity provider %s: read its CA (--oidc-ca-file, or issuer.certificateAuthority): %w", jwt.Issuer.URL, err)
		}
		trust.RootCAs = roots
	}
	return &http.Client{Transport: utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: trust}), Timeout: callTimeout}, nil
}

// withoutReserved returns an authenticator that refuses users of a with a reserved name,
// and removes reserved groups. It is for identity providers without a prefix for these
// names.
func withoutReserved(a authenticator.Token, names, groups bool) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateToken(ctx, token)
		if err != nil || !ok {
			return nil, false, err
		}
		if names && strings.HasPrefix(r.User.GetName(), auth.ReservedPrefix) {
			return nil, false, fmt.Errorf("the identity provider calls the user %q, and names that begin with %q are reserved; choose another --oidc-username-claim, or a prefix", r.User.GetName(), auth.ReservedPrefix)
		}
		if !groups {
			return r, true, nil
		}
		u := &user.DefaultInfo{Name: r.User.GetName(), UID: r.User.GetUID(), Extra: r.User.GetExtra()}
		u.Groups = slices.DeleteFunc(slices.Clone(r.User.GetGroups()), func(g string) bool { return strings.HasPrefix(g, auth.ReservedPrefix) })
		return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
	})
}
