package issuers

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
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/upstream"
)

const (
	// maxConnections limits the connected identity providers of workspaces.
	maxConnections = 256
	// maxOwnerConnections limits those of the clusters of one owner: a quarter.
	maxOwnerConnections = maxConnections / 4
	// maxWaiting limits the requests that wait for the keys of one identity provider.
	// They wait at most keysTimeout. A failed provider is retried after retryAfter.
	maxWaiting  = 100
	keysTimeout = 10 * time.Second
	retryAfter  = 10 * time.Second
	keysPoll    = 20 * time.Millisecond
	// idleAfter is how long an unused identity provider stays connected.
	idleAfter  = 10 * time.Minute
	sweepEvery = time.Minute
)

// WorkspaceOptions configures the identity providers of workspaces.
type WorkspaceOptions struct {
	// Of returns the identity providers of a cluster, from memory.
	Of func(ctx context.Context, c cluster.Name) []Provider
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

// WorkspaceProviders are the identity providers of workspaces. There is one connection per
// configuration, however many workspaces use it. The first token opens it. It is closed after some
// time without tokens.
type WorkspaceProviders struct {
	options WorkspaceOptions
	own     []string

	ctx     context.Context // of all
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	all    map[connectionKey]*connection
	count  map[cluster.Name]int
	owners map[cluster.Name]int // the same by owner
}

type connectionKey struct {
	tenant cluster.Name
	hash   [sha256.Size]byte
}

// A connection is a connected identity provider of a tenant.
type connection struct {
	url    string
	owner  cluster.Name
	ready  chan struct{} // closed once its keys are fetched, or failed to be
	cancel context.CancelFunc
	tokens authenticator.Token
	err    error

	// Guarded by WorkspaceProviders.mu.
	users int // requests in progress
	last  time.Time
	until time.Time // earliest retry after a failure
}

// NewWorkspaceProviders returns the identity providers of workspaces. None may have one of the issuers
// in own, which are the server's. The caller must call Close.
func NewWorkspaceProviders(o WorkspaceOptions, own []string) *WorkspaceProviders {
	i := &WorkspaceProviders{
		options: o, own: own,
		all: map[connectionKey]*connection{}, count: map[cluster.Name]int{}, owners: map[cluster.Name]int{},
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	upstream.SetGlobals()
	return i
}

// AuthenticateToken implements [authenticator.Token]. It authenticates users of the
// identity providers of the cluster of the context, for that cluster alone.
func (i *WorkspaceProviders) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, err := cluster.One(ctx)
	issuer, ok := issuerOf(token)
	if err != nil || !ok || c.System() {
		return nil, false, nil //nolint:nilerr // no workspace
	}
	named := i.named(ctx, c, issuer)
	if len(named) > 0 {
		again, err := i.options.Current.Confirms(ctx)
		if err != nil {
			return nil, false, err
		}
		if again {
			named = i.named(ctx, c, issuer)
		}
	} else if i.options.Fresh.CaughtUp(ctx) {
		named = i.named(ctx, c, issuer)
	}
	var errs []error
	for _, w := range named {
		r, ok, err := i.by(ctx, w, token)
		if err == nil && ok {
			u, err := auth.OfWorkspace(c, r.User)
			if err != nil {
				return nil, false, fmt.Errorf("the identity provider of the workspace calls the user %q, and %w", r.User.GetName(), err)
			}
			return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
		}
		errs = append(errs, err)
	}
	return nil, false, errors.Join(errs...)
}

// named returns the identity providers of a cluster that have the given issuer, each once.
func (i *WorkspaceProviders) named(ctx context.Context, c cluster.Name, issuer string) (named []Provider) {
	for _, w := range i.options.Of(ctx, c) {
		again := func(o Provider) bool { return o.Tenant == w.Tenant && o.Hash == w.Hash }
		if w.URL == issuer && len(named) < MaxProviders && !slices.ContainsFunc(named, again) {
			named = append(named, w)
		}
	}
	return named
}

// by authenticates a token by one identity provider. It waits until the provider's keys are
// fetched.
func (i *WorkspaceProviders) by(ctx context.Context, w Provider, token string) (*authenticator.Response, bool, error) {
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
func (i *WorkspaceProviders) enter(w Provider) (*connection, error) {
	now, key, owner := time.Now(), connectionKey{w.Tenant, w.Hash}, w.Tenant
	if i.options.Owner != nil {
		owner = i.options.Owner(w.Tenant) // without the lock: it has locks of its own
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
		e = &connection{url: w.URL, owner: owner, ready: make(chan struct{})}
		var ctx context.Context
		ctx, e.cancel = context.WithCancel(i.ctx)
		i.all[key] = e
		i.count[w.Tenant]++
		i.owners[owner]++
		i.running.Go(func() { i.begin(ctx, w, e) })
	}
	if e.users >= maxWaiting {
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

func (i *WorkspaceProviders) leave(e *connection) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e.users--
}

// roomLocked makes room for one more identity provider of a cluster. It drops the unused
// provider with the oldest use: one of the cluster or of its owner if that is at its limit, else
// one of the owner that would have most. So an owner of many clusters drops its own.
func (i *WorkspaceProviders) roomLocked(tenant, owner cluster.Name) error {
	own, owned := i.count[tenant] >= MaxProviders, i.owners[owner] >= maxOwnerConnections
	if !own && !owned && len(i.all) < maxConnections {
		return nil
	}
	var found *connectionKey
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

func (i *WorkspaceProviders) dropLocked(key connectionKey) {
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
func (i *WorkspaceProviders) begin(ctx context.Context, w Provider, e *connection) {
	defer close(e.ready)
	if e.err = i.connect(ctx, w, e); e.err == nil {
		return
	}
	e.cancel()
	i.mu.Lock()
	defer i.mu.Unlock()
	e.until = time.Now().Add(retryAfter)
}

func (i *WorkspaceProviders) connect(ctx context.Context, w Provider, e *connection) error {
	jwt, err := w.read(i.own)
	if err != nil {
		return err
	}
	calls, err := i.options.Calls(w.Tenant, []byte(jwt.Issuer.CertificateAuthority))
	if err != nil {
		return err
	}
	compute := func(ctx context.Context, evaluate func()) error { return i.options.Compute(ctx, w.Tenant, evaluate) }
	tokens, err := oidc.New(ctx, oidc.Options{
		JWTAuthenticator: jwt, Client: &http.Client{Transport: boundedCalls{calls}, Timeout: callTimeout}, DisallowedIssuers: i.own,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(), Compiler: newBoundedCompiler(compute),
	})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	tick := time.NewTicker(keysPoll)
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

// Run drops idle identity providers until ctx ends.
func (i *WorkspaceProviders) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
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

func (i *WorkspaceProviders) sweep(now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for key, e := range i.all {
		if e.users == 0 && now.Sub(e.last) >= idleAfter {
			i.dropLocked(key)
		}
	}
}

// Close ends the connections to the identity providers.
func (i *WorkspaceProviders) Close() {
	i.cancel()
	i.running.Wait()
}

// issuerOf returns the issuer in a JSON web token, and whether it has one. It does not
// verify the token.
func issuerOf(token string) (string, bool) {
	if len(token) > auth.MaxToken {
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
