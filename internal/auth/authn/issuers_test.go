package authn

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

type identity struct {
	Name   string
	Groups []string
}

// known returns the user of a token in a cluster, nobody if the token is refused.
func (a *Authenticators) known(t *testing.T, c cluster.Name, header http.Header) (identity, error) {
	t.Helper()
	r, ok, err := a.AuthenticateRequest((&http.Request{Header: header}).WithContext(authtest.In(c)))
	if !ok || err != nil {
		return identity{}, err
	}
	return identity{r.User.GetName(), r.User.GetGroups()}, nil
}

// await waits until the user of a token is as wanted.
func (a *Authenticators) await(t *testing.T, token string, want identity) {
	t.Helper()
	authtest.Await(t, want, func() (identity, error) { return a.known(t, "aa", withToken(token)) })
}

// authenticators returns the authenticators for these options, with service accounts.
func authenticators(t *testing.T, change func(*kubeoptions.BuiltInAuthenticationOptions)) *Authenticators {
	t.Helper()
	a, err := NewAuthenticators(Authentication{ServiceAccounts: newAccounts(t, newObjects().options()), Options: options(change)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// No mapping of claims to extra keys lets an identity provider create service accounts of any
// cluster.
func TestIdentityProviderMapsAccounts(t *testing.T) {
	t.Parallel()
	p := authtest.NewIdentityProvider(t)
	config := strings.Replace(string(authtest.ProvidersFile("", p)), `prefix: "p0:"`, `prefix: ""`, 1) +
		"    extra: [{key: authentication.kcp.io/cluster-name, valueExpression: claims.home}]\n"
	path := authtest.WriteFile(t, "authentication.yaml", []byte(config))
	a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	a.await(t, p.Token(t, map[string]any{"sub": "alice", "home": "aa"}), identity{"alice", []string{"system:authenticated"}})
	for _, name := range []string{"system:serviceaccount:ns:robot", "system:kcp:serviceaccount:aa:ns:robot"} {
		for _, c := range []cluster.Name{"aa", "bb", cluster.All, ""} {
			if got, err := a.known(t, c, withToken(p.Token(t, map[string]any{"sub": name, "home": "aa"}))); err == nil {
				t.Errorf("%s in %q: %v", name, c, got)
			}
		}
	}
}

func TestAnonymousByFile(t *testing.T) {
	t.Parallel()
	path := authtest.WriteFile(t, "authentication.yaml", authtest.ProvidersFile("anonymous: {enabled: true, conditions: [{path: /livez}]}\n"))
	a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	for at, want := range map[string]bool{"/livez": true, "/readyz": false, "/api/v1/namespaces": false, "/livez/ping": false} {
		req, err := http.NewRequestWithContext(authtest.In("aa"), http.MethodGet, "https://kcp"+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := a.AuthenticateRequest(req); ok != want || err != nil {
			t.Errorf("%s: %v, %v", at, ok, err)
		}
	}
}

// Closed authenticators leave no goroutines.
func TestAuthenticatorsEnd(t *testing.T) {
	p := authtest.NewIdentityProvider(t)
	config := authtest.ProvidersFile("", p)
	p.Close() // so that its keys are asked for again and again
	path := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a, err := NewAuthenticators(Authentication{Options: options(func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })})
		if err != nil {
			t.Fatal(err)
		}
		a.Close() // the bubble fails if anything runs on
	})
}
