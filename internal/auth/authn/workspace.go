package authn

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/upstream"
)

const (
	// maxWorkspaceIssuers limits the connected identity providers of workspaces.
	maxWorkspaceIssuers = 256
	// maxOwnerIssuers limits those of the clusters of one owner: a quarter.
	maxOwnerIssuers = maxWorkspaceIssuers / 4
	// maxIssuerWaiting limits the requests that wait for the keys of one identity provider.
	// They wait at most issuerKeysTimeout. A failed provider is retried after
	// issuerRetry.
	maxIssuerWaiting  = 100
	issuerKeysTimeout = 10 * time.Second
	issuerRetry       = 10 * time.Second
	issuerPoll        = 20 * time.Millisecond
	// issuerIdle is how long an unused identity provider stays connected.
	issuerIdle  = 10 * time.Minute
	issuerSweep = time.Minute
)

// WorkspaceAuthentication configures the identity providers of workspaces.
type WorkspaceAuthentication struct {
	// Of returns the identity providers of a cluster, from memory.
	Of func(ctx context.Context, c cluster.Name) []WorkspaceIssuer
	// Owner returns the owner of a cluster with configurations. All clusters of an owner share
	// limits. If it is nil, each cluster is its own owner.
	Owner func(cluster.Name) cluster.Name
	// Calls returns the transport of calls for a tenant, to servers verified by a CA
	// bundle.
	Calls func(tenant cluster.Name, bundle []byte) (http.RoundTripper, error)
	// Compute runs an evaluation of a tenant's expressions, in the tenant's share of the
	// processors.
	Compute func(ctx context.Context, tenant cluster.Name, evaluate func()) error
	// Fresh, if set, is called before a token is refused for lack of an identity provider.
	Fresh auth.Fresh

	// Current, if set, is called before a token is accepted on stored data.
	Current auth.Current
}

// workspaceIssuers authenticates the users of identity providers of workspaces. It keeps
// one connection per configuration, however many workspaces use it. The first token opens
// it; it is closed after some time without tokens.
type workspaceIssuers struct {
	WorkspaceAuthentication
	own []string

	ctx     context.Context // of all
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	all    map[issuerKey]*workspaceIssuer
	count  map[cluster.Name]int
	owners map[cluster.Name]int // the same by owner
}

type issuerKey struct {
	tenant cluster.Name
	hash   [sha256.Size]byte
}

// A workspaceIssuer is a connected identity provider.
type workspaceIssuer struct {
	url    string
	owner  cluster.Name
	ready  chan struct{} // closed once its keys are fetched, or failed to be
	cancel context.CancelFunc
	tokens authenticator.Token
	err    error

	// Guarded by workspaceIssuers.mu.
	users int // requests in progress
	last  time.Time
	until time.Time // earliest retry after a failure
}

func newWorkspaceIssuers(w WorkspaceAuthentication, own []string) *workspaceIssuers {
	i := &workspaceIssuers{
		WorkspaceAuthentication: w, own: own,
		all: map[issuerKey]*workspaceIssuer{}, count: map[cluster.Name]int{}, owners: map[cluster.Name]int{},
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	upstream.SetGlobals()
	return i
}

// AuthenticateToken implements [authenticator.Token]. It authenticates users of the
// identity providers of the cluster of the context, for that cluster alone.
func (i *workspaceIssuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, err := cluster.One(ctx)
	issuer, ok := issuerOf(token)
	if err != nil || !ok || c.System() {
		return nil, false, nil //nolint:nilerr // no workspace
	}
	named := i.named(ctx, c, issuer)
	if len(named) > 0 {
		again, err := i.Current.Confirms(ctx)
		if err != nil {
			return nil, false, err
		}
		if again {
			named = i.named(ctx, c, issuer)
		}
	} else if i.Fresh.CaughtUp(ctx) {
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

// named returns the identity providers of a cluster that have the given issuer, each once.
func (i *workspaceIssuers) named(ctx context.Context, c cluster.Name, issuer string) (named []WorkspaceIssuer) {
	for _, w := range i.Of(ctx, c) {
		again := func(o WorkspaceIssuer) bool { return o.Tenant == w.Tenant && o.Hash == w.Hash }
		if w.URL == issuer && len(named) < MaxIssuers && !slices.ContainsFunc(named, again) {
			named = append(named, w)
		}
	}
	return named
}

// by authenticates a token by one identity provider. It waits until the provider's keys are
// fetched.
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

// enter returns a connected identity provider, and connects it first if need be. The caller
// must call leave.
func (i *workspaceIssuers) enter(w WorkspaceIssuer) (*workspaceIssuer, error) {
	now, key, owner := time.Now(), issuerKey{w.Tenant, w.Hash}, w.Tenant
	if i.Owner != nil {
		owner = i.Owner(w.Tenant) // without the lock: it has locks of its own
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.all[key]
	if e != nil && !e.until.IsZero() && !now.Before(e.until) {
		i.dropLocked(key) // requests that still report the failure do not need it
		e = nil
	}
	if e == nil {
		if i.ctx.Err() != nil {
			return nil, errors.New("the server is stopping")
		}
		if err := i.roomLocked(w.Tenant, owner); err != nil {
			return nil, err
		}
		e = &workspaceIssuer{url: w.URL, owner: owner, ready: make(chan struct{})}
		var ctx context.Context
		ctx, e.cancel = context.WithCancel(i.ctx)
		i.all[key] = e
		i.count[w.Tenant]++
		i.owners[owner]++
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

// roomLocked makes room for one more identity provider of a cluster. It drops the unused
// provider with the oldest use: one of the cluster or of its owner if that is at its limit, else
// one of the owner that would have most. So an owner of many clusters drops its own.
func (i *workspaceIssuers) roomLocked(tenant, owner cluster.Name) error {
	own, owned := i.count[tenant] >= MaxIssuers, i.owners[owner] >= maxOwnerIssuers
	if !own && !owned && len(i.all) < maxWorkspaceIssuers {
		return nil
	}
	var found *issuerKey
	var most int
	for key, e := range i.all {
		if e.users > 0 || own && key.tenant != tenant || owned && e.owner != owner {
			continue
		}
		n := i.owners[e.owner]
		if e.owner == owner {
			n++ // with the one that needs room
		}
		if found == nil || n > most || n == most && e.last.Before(i.all[*found].last) {
			found, most = &key, n
		}
	}
	if found == nil {
		return errors.New("too many identity providers of workspaces are in use")
	}
	i.dropLocked(*found)
	return nil
}

func (i *workspaceIssuers) dropLocked(key issuerKey) {
	e := i.all[key]
	e.cancel()
	oidc.DeleteJWKSFetchMetrics(e.url, "") // tenants choose the URL: keep no series of it
	delete(i.all, key)
	lessOne(i.count, key.tenant)
	lessOne(i.owners, e.owner)
}

func lessOne(counts map[cluster.Name]int, c cluster.Name) {
	if counts[c]--; counts[c] == 0 {
		delete(counts, c)
	}
}

// begin fetches the keys of an identity provider, and then closes e.ready.
func (i *workspaceIssuers) begin(ctx context.Context, w WorkspaceIssuer, e *workspaceIssuer) {
	defer close(e.ready)
	if e.err = i.connect(ctx, w, e); e.err == nil {
		return
	}
	e.cancel()
	i.mu.Lock()
	defer i.mu.Unlock()
	e.until = time.Now().Add(issuerRetry)
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
	compute := func(ctx context.Context, evaluate func()) error { return i.Compute(ctx, w.Tenant, evaluate) }
	tokens, err := oidc.New(ctx, oidc.Options{
		JWTAuthenticator: jwt, Client: &http.Client{Transport: boundedCalls{calls}, Timeout: issuerTimeout}, DisallowedIssuers: i.own,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(), Compiler: newBoundedCompiler(compute),
	})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, issuerKeysTimeout)
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
		case <-waiting.Done():
			return unhealthy
		}
	}
}

// run drops idle identity providers until ctx ends.
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

// withinWorkspace returns the user of a workspace's identity provider: in the scope of that
// workspace alone, without reserved groups and extra keys. A reserved name is an error.
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
	u.Extra[auth.ScopesKey] = []string{auth.ScopePrefix + string(c)}
	u.Extra[auth.ClusterNameKey] = []string{string(c)}
	return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
}

// issuerOf returns the issuer in a JSON web token, and whether it has one. It does not
// verify the token.
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
