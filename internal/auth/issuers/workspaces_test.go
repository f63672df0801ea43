package issuers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/unforked/kcp/internal/cluster"
)

// hosted is any number of identity providers without a network. The issuer of each is
// https://<name>, and all sign with the same key.
type hosted struct {
	mu    sync.Mutex
	kid   string
	key   *ecdsa.PrivateKey
	asked map[string]int           // how often each was discovered
	down  map[string]bool          // refuse connections
	hangs map[string]chan struct{} // answer once it is closed
}

func newHosted(t *testing.T) *hosted {
	h := &hosted{asked: map[string]int{}, down: map[string]bool{}, hangs: map[string]chan struct{}{}}
	h.rotate(t, "one")
	return h
}

func (h *hosted) rotate(t *testing.T, kid string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kid, h.key = kid, key
}

func (h *hosted) set(name string, down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down[name] = down
}

// hang makes a provider hang until the returned function is called.
func (h *hosted) hang(name string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hung := make(chan struct{})
	h.hangs[name] = hung
	return sync.OnceFunc(func() { close(hung) })
}

// RoundTrip implements [http.RoundTripper].
func (h *hosted) RoundTrip(req *http.Request) (*http.Response, error) {
	name := req.URL.Host
	h.mu.Lock()
	down, hung := h.down[name], h.hangs[name]
	h.mu.Unlock()
	if down {
		return nil, fmt.Errorf("connect to %s: refused", name)
	}
	if hung != nil {
		select {
		case <-hung:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.Path {
	case "/.well-known/openid-configuration":
		h.asked[name]++
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": "https://" + name, "jwks_uri": "https://" + name + "/keys"})
	case "/keys":
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: h.key.Public(), KeyID: h.kid, Use: "sig", Algorithm: string(jose.ES256)}}})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	return w.Result(), nil
}

func (h *hosted) token(t *testing.T, name, audience string) string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: h.key, KeyID: h.kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": "https://" + name, "aud": audience, "sub": "carol", "iat": now.Unix(), "exp": now.Add(24 * time.Hour).Unix(),
	}).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// issuedBy returns a configuration of a tenant with a provider.
func issuedBy(tenant cluster.Name, name, audience, prefix string) Provider {
	return NewProvider(tenant, fmt.Appendf(nil,
		`{"issuer":{"url":"https://%s","audiences":[%q]},"claimMappings":{"username":{"claim":"sub","prefix":%q}}}`, name, audience, prefix))
}

// A pool of the identity providers of clusters. It is stopped when the test ends.
type pool struct {
	t *testing.T
	h *hosted
	*WorkspaceProviders
	of map[cluster.Name][]Provider
}

func newPool(t *testing.T) *pool {
	p := &pool{t: t, h: newHosted(t), of: map[cluster.Name][]Provider{}}
	p.WorkspaceProviders = NewWorkspaceProviders(WorkspaceOptions{
		Of:      func(_ context.Context, c cluster.Name) []Provider { return p.of[c] },
		Calls:   func(cluster.Name, []byte) (http.RoundTripper, error) { return p.h, nil },
		Compute: func(_ context.Context, _ cluster.Name, evaluate func()) error { evaluate(); return nil },
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		p.Close()
		running.Wait()
	})
	return p
}

// names returns the user of a token in a cluster.
//
// The library stores fetched keys and errors a moment after it has used them.
func (p *pool) names(c cluster.Name, token string) (string, error) {
	r, ok, err := p.AuthenticateToken(cluster.With(p.t.Context(), c), token)
	if !ok || err != nil {
		return "", err
	}
	return r.User.GetName(), nil
}

func (p *pool) known(c cluster.Name, token, want string) {
	p.t.Helper()
	if got, err := p.names(c, token); got != want {
		p.t.Errorf("in %s: %q, %v; want %q", c, got, err, want)
	}
}

func (p *pool) kept() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// byOwner returns how many providers the owners keep that have any.
func (p *pool) byOwner() map[cluster.Name]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.owners)
}

// after waits for the given time.
func after(d time.Duration) { <-time.After(d) }

// The pool keeps a limited number of providers: those that were used last. It fetches the keys of
// an evicted provider again, and removes idle providers.
func TestProvidersOfWorkspacesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		for i := range MaxProviders + 1 {
			p.of["busy"] = append(p.of["busy"], issuedBy("busy", fmt.Sprintf("own-%d.example", i), "app", ""))
			p.known("busy", p.h.token(t, fmt.Sprintf("own-%d.example", i), "app"), "carol")
			after(time.Second)
		}
		if n := p.kept(); n != MaxProviders {
			t.Errorf("%d are kept of one tenant", n)
		}
		p.known("busy", p.h.token(t, "own-1.example", "app"), "carol")
		p.known("busy", p.h.token(t, "own-0.example", "app"), "carol") // in the place of the third
		if want := (map[string]int{"own-0.example": 2, "own-1.example": 1}); !cmp.Equal(want, map[string]int{"own-0.example": p.h.asked["own-0.example"], "own-1.example": p.h.asked["own-1.example"]}) {
			t.Errorf("asked %v", p.h.asked)
		}
		before := runtime.NumGoroutine()
		for i := range 2 * maxConnections {
			c := cluster.Name(fmt.Sprintf("tenant-%d", i))
			p.of[c] = []Provider{issuedBy(c, fmt.Sprintf("%d.example", i), "app", "")}
			p.known(c, p.h.token(t, fmt.Sprintf("%d.example", i), "app"), "carol")
		}
		synctest.Wait()
		if n := p.kept(); n != maxConnections {
			t.Errorf("%d are kept", n)
		}
		if n := runtime.NumGoroutine() - before; n > 10 {
			t.Errorf("%d goroutines for %d providers", n, p.kept())
		}
		p.known("tenant-0", p.h.token(t, "0.example", "app"), "carol")
		after(idleAfter + 2*sweepEvery)
		if n := p.kept(); n != 0 || len(p.count) != 0 {
			t.Errorf("%d are kept that nobody uses, of %d tenants", n, len(p.count))
		}
		p.known("tenant-0", p.h.token(t, "0.example", "app"), "carol")
	})
}

// connect uses a token of a provider that only the given cluster has.
func (p *pool) connect(c cluster.Name) {
	p.t.Helper()
	p.of[c] = []Provider{issuedBy(c, string(c), "app", "")}
	p.known(c, p.h.token(p.t, string(c), "app"), "carol")
	after(time.Second) // so that the last uses have an order
}

// The clusters of one owner keep a part of the providers. When all places are taken, the owner with
// most providers loses one.
func TestOwnersShareProvidersOfWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.options.Owner = func(c cluster.Name) cluster.Name {
			owner, _, _ := strings.Cut(string(c), "-")
			return cluster.Name(owner)
		}
		p.connect("quiet-0")
		for i := range maxConnections + 40 {
			p.connect(cluster.Name(fmt.Sprintf("one-%d", i)))
		}
		p.connect("quiet-0")
		if n := p.kept(); n != maxOwnerConnections+1 {
			t.Errorf("%d providers are kept of two owners", n)
		}
		if n := p.h.asked["quiet-0"]; n != 1 {
			t.Errorf("the keys of another owner were fetched %d times", n)
		}
		for i := 0; p.kept() < maxConnections; i++ { // no other owner has more than two
			p.connect(cluster.Name(fmt.Sprintf("small%d-0", i/2)))
			p.connect(cluster.Name(fmt.Sprintf("small%d-1", i/2)))
		}
		most := p.byOwner()["one"]
		p.connect("late-0")
		p.connect("quiet-0")
		p.connect("small0-0")
		if n := [...]int{p.h.asked["quiet-0"], p.h.asked["small0-0"], p.byOwner()["one"]}; n != [...]int{1, 1, most - 1} {
			t.Errorf("keys fetched %d times for an owner of one provider, %d times for an owner of two; the owner of most keeps %d", n[0], n[1], n[2])
		}
		after(idleAfter + 2*sweepEvery)
		if owners := p.byOwner(); len(owners) != 0 {
			t.Errorf("owners without providers are kept: %v", owners)
		}
	})
}

// A hanging provider delays only requests with its tokens, and only until the timeout. Hanging
// providers of a tenant count for the limit of that tenant.
func TestProvidersOfWorkspacesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		var waiting sync.WaitGroup
		p.of["other"] = []Provider{issuedBy("other", "quick.example", "app", "")}
		for i := range MaxProviders + 1 {
			p.of["slow"] = append(p.of["slow"], issuedBy("slow", fmt.Sprintf("slow-%d.example", i), "app", ""))
		}
		for i := range MaxProviders {
			name := fmt.Sprintf("slow-%d.example", i)
			defer p.h.hang(name)()
			token := p.h.token(t, name, "app")
			waiting.Go(func() {
				if got, err := p.names("slow", token); err == nil {
					t.Errorf("%s: %q", name, got)
				}
			})
		}
		begin := time.Now()
		synctest.Wait()
		if got, err := p.names("slow", p.h.token(t, fmt.Sprintf("slow-%d.example", MaxProviders), "app")); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("one more of the tenant: %q, %v", got, err)
		}
		p.known("other", p.h.token(t, "quick.example", "app"), "carol")
		if took := time.Since(begin); took > keysPoll {
			t.Errorf("others waited for %v", took)
		}
		many := p.h.token(t, "slow-0.example", "app")
		refused := make(chan error, 2*maxWaiting)
		for range 2 * maxWaiting {
			waiting.Go(func() { refused <- second(p.names("slow", many)) })
		}
		synctest.Wait()
		if n := len(refused); n <= maxWaiting {
			t.Errorf("%d of %d are told at once that it hangs", n, 2*maxWaiting)
		}
		waiting.Wait()
		if took := time.Since(begin); took > keysTimeout {
			t.Errorf("they waited for %v", took)
		}
	})
}

// The pool fetches the keys of a failed provider again a little later, independent of the number
// of requests. If a provider fails later, its known keys stay valid, and new keys are valid as
// soon as it works again.
func TestProvidersOfWorkspacesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.of["aa"] = []Provider{issuedBy("aa", "login.example", "app", "")}
		token := p.h.token(t, "login.example", "app")
		p.h.set("login.example", true)
		if got, err := p.names("aa", token); err == nil {
			t.Fatalf("a provider that is down: %q", got)
		}
		p.h.set("login.example", false)
		begin := time.Now()
		if got, err := p.names("aa", token); err == nil || time.Since(begin) > 0 {
			t.Errorf("at once: %q, %v, after %v", got, err, time.Since(begin))
		}
		after(retryAfter)
		p.known("aa", token, "carol")
		// It fails, and changes its keys meanwhile.
		p.h.set("login.example", true)
		p.known("aa", token, "carol")
		p.h.rotate(t, "two")
		fresh := p.h.token(t, "login.example", "app")
		if got, err := p.names("aa", fresh); err == nil {
			t.Errorf("by a key that nobody knows: %q", got)
		}
		synctest.Wait()
		p.h.set("login.example", false)
		p.known("aa", fresh, "carol")
		synctest.Wait()
		if got, err := p.names("aa", token); err == nil {
			t.Errorf("by a key that was taken back: %q", got)
		}
	})
}

// A failed provider is tried again in time, even if requests with its tokens never pause.
func TestProviderThatFailedIsAskedAgainUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		w := issuedBy("aa", "login.example", "app", "")
		p.of["aa"] = []Provider{w}
		token := p.h.token(t, "login.example", "app")
		p.h.set("login.example", true)
		if got, err := p.names("aa", token); err == nil {
			t.Fatalf("a provider that is down: %q", got)
		}
		e, err := p.enter(w)
		if err != nil {
			t.Fatal(err)
		}
		defer p.leave(e)
		p.h.set("login.example", false)
		after(retryAfter)
		p.known("aa", token, "carol")
	})
}

// Types with the same issuer are independent: each has its own audiences and mapping of claims.
func TestProvidersOfWorkspacesWithOneIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.of["shop"] = []Provider{issuedBy("types", "login.example", "shop", "shop:")}
		p.of["bank"] = []Provider{issuedBy("types", "login.example", "bank", "bank:")}
		p.of["both"] = append(append(p.of["both"], p.of["bank"]...), p.of["shop"]...)
		shop, bank := p.h.token(t, "login.example", "shop"), p.h.token(t, "login.example", "bank")
		p.known("shop", shop, "shop:carol")
		p.known("bank", bank, "bank:carol")
		p.known("both", shop, "shop:carol")
		p.known("both", bank, "bank:carol")
		for c, token := range map[cluster.Name]string{"shop": bank, "bank": shop, "none": shop} {
			if got, _ := p.names(c, token); got != "" {
				t.Errorf("in %s: %q", c, got)
			}
		}
		if n := p.kept(); n != 2 {
			t.Errorf("%d are kept for two configurations", n)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// A provider that a cluster has several times is asked once, and a limited number of providers
// with the issuer of a token is asked.
func TestProvidersOfATokenAreBounded(t *testing.T) {
	p := newPool(t)
	for range 1000 {
		p.of["same"] = append(p.of["same"], issuedBy("types", "login.example", "app", ""))
	}
	for n := range 1000 {
		p.of["many"] = append(p.of["many"], issuedBy("types", "login.example", fmt.Sprint(n), ""))
	}
	for c, want := range map[cluster.Name]int{"same": 1, "many": MaxProviders} {
		if got := len(p.named(t.Context(), c, "https://login.example")); got != want {
			t.Errorf("%s: %d providers", c, got)
		}
	}
}

// Expressions of a provider are evaluated in the share of the tenant that configured it.
func TestExpressionsOfProviders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t)
		p.of["aa"] = []Provider{NewProvider("types", []byte(`{"issuer":{"url":"https://login.example","audiences":["app"]},
			"claimMappings":{"username":{"expression":"claims.sub"}},"userValidationRules":[{"expression":"user.username.matches('^c')","message":"no"}]}`))}
		token := p.h.token(t, "login.example", "app")
		var computed []cluster.Name
		p.options.Compute = func(_ context.Context, c cluster.Name, evaluate func()) error {
			computed = append(computed, c)
			evaluate()
			return nil
		}
		p.known("aa", token, "carol")
		if diff := cmp.Diff([]cluster.Name{"types", "types"}, computed); diff != "" {
			t.Error(diff)
		}
		p.options.Compute = func(context.Context, cluster.Name, func()) error { return errors.New("too many") }
		if got, err := p.names("aa", token); got != "" || err == nil {
			t.Errorf("without a seat: %q, %v", got, err)
		}
	})
}
