package auth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/component-base/metrics"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// maxWorkspaceIssuers bounds the identity providers of workspaces whose keys are kept,
	// and maxTenantIssuers those that one logical cluster has configured.
	maxWorkspaceIssuers = 256
	maxTenantIssuers    = 16
	// maxIssuerWaiting bounds the requests that wait for one to tell its keys, which takes
	// issuerPatience at most. One that does not is asked again after issuerAgain.
	maxIssuerWaiting = 100
	issuerPatience   = 10 * time.Second
	issuerAgain      = 10 * time.Second
	issuerPoll       = 20 * time.Millisecond
	// issuerIdle is how long one is kept that nobody uses.
	issuerIdle  = 10 * time.Minute
	issuerSweep = time.Minute
)

// A WorkspaceIssuer is an identity provider that a logical cluster has configured, for
// workspaces of some types.
type WorkspaceIssuer struct {
	// Tenant is the cluster, URL what tokens name as their issuer, and Hash over the text.
	Tenant cluster.Name
	URL    string
	Hash   [sha256.Size]byte
	text   []byte
}

// NewWorkspaceIssuer returns the identity provider in an element of spec.jwt, in JSON, of a
// WorkspaceAuthenticationConfiguration in a cluster. It need not be one that can be used.
func NewWorkspaceIssuer(tenant cluster.Name, text []byte) WorkspaceIssuer {
	var named struct {
		Issuer struct {
			URL string `json:"url"`
		} `json:"issuer"`
	}
	_ = json.Unmarshal(text, &named) // one without a URL signs nothing
	return WorkspaceIssuer{tenant, named.Issuer.URL, sha256.Sum256(text), text}
}

// Validate reports what keeps an identity provider from being used.
func (w WorkspaceIssuer) Validate(own []string) error {
	_, err := w.read(own)
	return err
}

func (w WorkspaceIssuer) read(own []string) (apiserver.JWTAuthenticator, error) {
	var in apiserverv1.JWTAuthenticator
	var out apiserver.JWTAuthenticator
	if err := json.Unmarshal(w.text, &in); err != nil {
		return out, err
	}
	if err := apiserverv1.Convert_v1_JWTAuthenticator_To_apiserver_JWTAuthenticator(&in, &out, nil); err != nil {
		return out, err
	}
	if out.Issuer.EgressSelectorType != "" {
		return out, errors.New("issuer.egressSelectorType: there are no egress selectors; remove it")
	}
	_, errs := apiservervalidation.CompileAndValidateJWTAuthenticator(authenticationcel.NewDefaultCompiler(), out, own)
	return out, errs.ToAggregate()
}

// WorkspaceAuthentication says whom else workspaces know.
type WorkspaceAuthentication struct {
	// Of returns the identity providers of a cluster, from memory.
	Of func(ctx context.Context, c cluster.Name) []WorkspaceIssuer
	// Calls returns what makes calls for a tenant, to servers verified by a bundle.
	Calls func(tenant cluster.Name, bundle []byte) (http.RoundTripper, error)
	// Fresh, if set, is asked before a token is refused for lack of an identity provider.
	Fresh Fresh
}

// workspaceIssuers know the users of the identity providers of workspaces. What is kept
// belongs to a configuration, however many workspaces it is of: it is made for the first
// token and goes when there were none for a while.
type workspaceIssuers struct {
	WorkspaceAuthentication
	own []string

	ctx     context.Context // of all
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	all   map[issuerKey]*workspaceIssuer
	count map[cluster.Name]int
}

type issuerKey struct {
	tenant cluster.Name
	hash   [sha256.Size]byte
}

// A workspaceIssuer is an identity provider in use.
type workspaceIssuer struct {
	url    string
	ready  chan struct{} // closed once it has told its keys, or failed to
	cancel context.CancelFunc
	tokens authenticator.Token
	err    error

	// guarded by workspaceIssuers.mu
	users int // requests with a token of it
	last  time.Time
	until time.Time // when it may be tried again after it failed
}

func newWorkspaceIssuers(w WorkspaceAuthentication, own []string) *workspaceIssuers {
	i := &workspaceIssuers{WorkspaceAuthentication: w, own: own, all: map[issuerKey]*workspaceIssuer{}, count: map[cluster.Name]int{}}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	withoutIssuerLabels()
	return i
}

// withoutIssuerLabels keeps the issuers that tenants choose out of the labels of the metric
// that the library has for the whole process. All servers of a process share it.
var withoutIssuerLabels = sync.OnceFunc(func() {
	metrics.SetLabelAllowList(map[string]string{"apiserver_authentication_jwt_authenticator_latency_seconds,jwt_issuer_hash": ""})
})

// AuthenticateToken implements [authenticator.Token]: by the identity providers of the
// cluster of the context, whose users are known there alone.
func (i *workspaceIssuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, err := cluster.One(ctx)
	issuer, ok := issuerOf(token)
	if err != nil || !ok || c.System() {
		return nil, false, nil //nolint:nilerr // a request for no one cluster has no workspace's users
	}
	named := i.named(ctx, c, issuer)
	if len(named) == 0 && i.Fresh.caughtUp(ctx) {
		named = i.named(ctx, c, issuer)
	}
	var errs []error
	for _, w := range named {
		r, ok, err := i.by(ctx, w, token)
		if err == nil && ok {
			return withinWorkspace(c, r)
		}
		errs = append(errs, err)
	}
	return nil, false, errors.Join(errs...)
}

// named returns the identity providers of a cluster that an issuer is called by.
func (i *workspaceIssuers) named(ctx context.Context, c cluster.Name, issuer string) (named []WorkspaceIssuer) {
	for _, w := range i.Of(ctx, c) {
		if w.URL == issuer {
			named = append(named, w)
		}
	}
	return named
}

// by asks one identity provider whose a token is.
func (i *workspaceIssuers) by(ctx context.Context, w WorkspaceIssuer, token string) (*authenticator.Response, bool, error) {
	e, err := i.enter(w)
	if err != nil {
		return nil, false, fmt.Errorf("identity provider %s of logical cluster %s: %w", w.URL, w.Tenant, err)
	}
	defer i.leave(e)
	select {
	case <-e.ready:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if e.err != nil {
		return nil, false, fmt.Errorf("identity provider %s of logical cluster %s: %w", w.URL, w.Tenant, e.err)
	}
	return e.tokens.AuthenticateToken(ctx, token)
}

// enter returns an identity provider, which is made if it is not there.
func (i *workspaceIssuers) enter(w WorkspaceIssuer) (*workspaceIssuer, error) {
	now, key := time.Now(), issuerKey{w.Tenant, w.Hash}
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.all[key]
	if e != nil && !e.until.IsZero() && !now.Before(e.until) {
		i.dropLocked(key) // who is still being told that it failed needs nothing of it
		e = nil
	}
	if e == nil {
		if i.ctx.Err() != nil {
			return nil, errors.New("the server is stopping")
		}
		if err := i.roomLocked(w.Tenant); err != nil {
			return nil, err
		}
		e = &workspaceIssuer{url: w.URL, ready: make(chan struct{})}
		var ctx context.Context
		ctx, e.cancel = context.WithCancel(i.ctx)
		i.all[key] = e
		i.count[w.Tenant]++
		i.running.Go(func() { i.begin(ctx, w, e) })
	}
	if e.users >= maxIssuerWaiting {
		select {
		case <-e.ready:
		default:
			return nil, errors.New("too many requests wait for its keys")
		}
	}
	e.users++
	e.last = now
	return e, nil
}

func (i *workspaceIssuers) leave(e *workspaceIssuer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e.users--
}

// roomLocked makes room for one more identity provider of a tenant, in the place of one
// that nobody is using: of his own, if he has as many as he may.
func (i *workspaceIssuers) roomLocked(tenant cluster.Name) error {
	mine := i.count[tenant] >= maxTenantIssuers
	if !mine && len(i.all) < maxWorkspaceIssuers {
		return nil
	}
	var oldest *issuerKey
	for key, e := range i.all {
		if e.users == 0 && (!mine || key.tenant == tenant) && (oldest == nil || e.last.Before(i.all[*oldest].last)) {
			oldest = &key
		}
	}
	if oldest == nil {
		return errors.New("too many identity providers of workspaces are in use")
	}
	i.dropLocked(*oldest)
	return nil
}

func (i *workspaceIssuers) dropLocked(key issuerKey) {
	i.all[key].cancel()
	oidc.DeleteJWKSFetchMetrics(i.all[key].url, "") // no series is left of what a tenant chose
	delete(i.all, key)
	if i.count[key.tenant]--; i.count[key.tenant] == 0 {
		delete(i.count, key.tenant)
	}
}

// begin fetches the keys of an identity provider.
func (i *workspaceIssuers) begin(ctx context.Context, w WorkspaceIssuer, e *workspaceIssuer) {
	defer close(e.ready)
	if e.err = i.connect(ctx, w, e); e.err == nil {
		return
	}
	e.cancel()
	i.mu.Lock()
	defer i.mu.Unlock()
	e.until = time.Now().Add(issuerAgain)
}

func (i *workspaceIssuers) connect(ctx context.Context, w WorkspaceIssuer, e *workspaceIssuer) error {
	jwt, err := w.read(i.own)
	if err != nil {
		return err
	}
	calls, err := i.Calls(w.Tenant, []byte(jwt.Issuer.CertificateAuthority))
	if err != nil {
		return err
	}
	tokens, err := oidc.New(ctx, oidc.Options{
		JWTAuthenticator: jwt, Client: &http.Client{Transport: calls, Timeout: issuerTimeout}, DisallowedIssuers: i.own,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
	})
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, issuerPatience)
	defer cancel()
	tick := time.NewTicker(issuerPoll)
	defer tick.Stop()
	for {
		unhealthy := tokens.HealthCheck()
		if unhealthy == nil {
			e.tokens = tokens
			return nil
		}
		select {
		case <-tick.C:
		case <-patience.Done():
			return unhealthy
		}
	}
}

// run lets go of identity providers that nobody uses, until the context ends.
func (i *workspaceIssuers) run(ctx context.Context) {
	tick := time.NewTicker(issuerSweep)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			i.sweep(now)
		case <-ctx.Done():
			return
		}
	}
}

func (i *workspaceIssuers) sweep(now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for key, e := range i.all {
		if e.users == 0 && now.Sub(e.last) >= issuerIdle {
			i.dropLocked(key)
		}
	}
}

func (i *workspaceIssuers) close() {
	i.cancel()
	i.running.Wait()
}

// withinWorkspace returns the user of an identity provider of a workspace as he is there:
// without what has a meaning to the server, and in its scope alone.
func withinWorkspace(c cluster.Name, r *authenticator.Response) (*authenticator.Response, bool, error) {
	if strings.HasPrefix(r.User.GetName(), reserved) || r.User.GetName() == "" {
		return nil, false, fmt.Errorf("the identity provider of the workspace calls the user %q, and names that begin with %q are reserved", r.User.GetName(), reserved)
	}
	u := &user.DefaultInfo{Name: r.User.GetName(), UID: r.User.GetUID(), Extra: map[string][]string{}}
	for _, g := range r.User.GetGroups() {
		if !strings.HasPrefix(g, reserved) {
			u.Groups = append(u.Groups, g)
		}
	}
	for key, values := range r.User.GetExtra() {
		if !strings.Contains(strings.ToLower(key), "kcp.io") {
			u.Extra[key] = values
		}
	}
	u.Extra[ScopesKey] = []string{ScopePrefix + string(c)}
	u.Extra[ClusterNameKey] = []string{string(c)}
	return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
}

// issuerOf returns the issuer that a JSON web token names, and whether it names one. It
// verifies nothing.
func issuerOf(token string) (string, bool) {
	if len(token) > maxToken {
		return "", false
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, _, ok := strings.Cut(rest, ".")
	data, err := base64.RawURLEncoding.DecodeString(payload)
	if !ok || err != nil {
		return "", false
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	err = json.Unmarshal(data, &claims)
	return claims.Issuer, err == nil && claims.Issuer != ""
}
