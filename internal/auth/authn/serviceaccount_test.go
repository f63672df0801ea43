package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

// objects holds service accounts and secrets by cluster/namespace/name.
type objects struct {
	accounts map[string]*corev1.ServiceAccount
	secrets  map[string]*corev1.Secret
	patches  []string
}

func newObjects() *objects {
	return &objects{map[string]*corev1.ServiceAccount{}, map[string]*corev1.Secret{}, nil}
}

func (o *objects) account(c cluster.Name, namespace, name, uid string) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	o.accounts[string(c)+"/"+namespace+"/"+name] = a
	return a
}

func (o *objects) secret(c cluster.Name, namespace, name, uid string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	o.secrets[string(c)+"/"+namespace+"/"+name] = s
	return s
}

func (o *objects) options() ServiceAccountOptions {
	return ServiceAccountOptions{
		ServiceAccount: func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
			c, err := cluster.One(ctx)
			if err != nil {
				return nil, err
			}
			if a := o.accounts[string(c)+"/"+namespace+"/"+name]; a != nil {
				return a, nil
			}
			return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
		},
		Secret: func(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
			c, err := cluster.One(ctx)
			if err != nil {
				return nil, err
			}
			if s := o.secrets[string(c)+"/"+namespace+"/"+name]; s != nil {
				return s, nil
			}
			return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
		},
		PatchSecret: func(ctx context.Context, namespace, name string, patch []byte) error {
			c, err := cluster.One(ctx)
			o.patches = append(o.patches, string(c)+"/"+namespace+"/"+name)
			return err
		},
	}
}

func newAccounts(t testing.TB, o ServiceAccountOptions) *ServiceAccounts {
	t.Helper()
	s, err := NewServiceAccounts(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// boundToken returns the token of a request to the token subresource of a service account.
func boundToken(t testing.TB, s serviceaccount.TokenGenerator, c cluster.Name, a *corev1.ServiceAccount, secret *core.Secret, seconds int64) string {
	t.Helper()
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: a.ObjectMeta}, nil, secret, nil, seconds, 1800, []string{DefaultIssuer})
	if err != nil {
		t.Fatal(err)
	}
	token, err := s.GenerateToken(authtest.In(c), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func legacyToken(t testing.TB, s *ServiceAccounts, c cluster.Name, a *corev1.ServiceAccount, secret *corev1.Secret) string {
	t.Helper()
	token, err := s.LegacyToken(authtest.In(c), a, secret)
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
	return token
}

func payload(t testing.TB, token string) map[string]any {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	if err := json.Unmarshal(data, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestServiceAccountIdentity(t *testing.T) {
	o := newObjects()
	s := newAccounts(t, o.options())
	a := o.account("aa", "ns", "robot", "u1")
	tokens := map[string]string{
		"bound":  boundToken(t, s, "aa", a, nil, 3600),
		"legacy": legacyToken(t, s, "aa", a, o.secret("aa", "ns", "robot-token", "u2")),
	}
	local := user.DefaultInfo{
		Name: "system:serviceaccount:ns:robot", UID: "u1", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns"},
		Extra: map[string][]string{"authentication.kcp.io/cluster-name": {"aa"}},
	}
	stranger := user.DefaultInfo{
		Name: "system:kcp:serviceaccount:aa:ns:robot", UID: "u1", Groups: []string{"system:authenticated", "system:cluster:aa"},
		Extra: map[string][]string{"authentication.kcp.io/cluster-name": {"aa"}},
	}
	for kind, token := range tokens {
		for c, want := range map[cluster.Name]user.DefaultInfo{"aa": local, "": local, "bb": stranger, cluster.All: stranger, "root": stranger} {
			r, ok, err := s.AuthenticateToken(authtest.In(c), token)
			if err != nil || !ok {
				t.Errorf("%s in %q: %v, %v", kind, c, ok, err)
				continue
			}
			got := *r.User.(*user.DefaultInfo)
			if kind == "bound" {
				if id := got.Extra[user.CredentialIDKey]; len(id) != 1 || !strings.HasPrefix(id[0], "JTI=") {
					t.Errorf("%s in %q: credential %v", kind, c, id)
				}
				delete(got.Extra, user.CredentialIDKey)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s in %q: (-want +got)\n%s", kind, c, diff)
			}
		}
	}
	for _, p := range o.patches {
		if p != "aa/ns/robot-token" {
			t.Errorf("recorded the use of %s", p)
		}
	}
	if len(o.patches) == 0 {
		t.Error("did not record that a legacy token is in use")
	}
}

// There are no pods and nodes, so tokens that are bound to one are invalid.
func TestTokensOfPodsAndNodes(t *testing.T) {
	o := newObjects()
	s := newAccounts(t, o.options())
	a := core.ServiceAccount{ObjectMeta: o.account("aa", "ns", "robot", "u1").ObjectMeta}
	for name, bind := range map[string]func() (*jwt.Claims, any, error){
		"pod": func() (*jwt.Claims, any, error) {
			return serviceaccount.Claims(a, &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u2"}}, nil, nil, 3600, 0, []string{DefaultIssuer})
		},
		"node": func() (*jwt.Claims, any, error) {
			return serviceaccount.Claims(a, nil, nil, &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u2"}}, 3600, 0, []string{DefaultIssuer})
		},
	} {
		claims, private, err := bind()
		if err != nil {
			t.Fatal(err)
		}
		token, err := s.GenerateToken(authtest.In("aa"), claims, private)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); ok || err == nil {
			t.Errorf("a token bound to a %s is valid", name)
		}
	}
}

// Concurrent requests of one client, for the race detector.
func TestAuthenticateAtOnce(t *testing.T) {
	o := newObjects()
	options := o.options()
	options.PatchSecret = nil
	s := newAccounts(t, options)
	a := o.account("aa", "ns", "robot", "u1")
	tokens := []string{boundToken(t, s, "aa", a, nil, 3600), legacyToken(t, s, "aa", a, o.secret("aa", "ns", "t", "u2"))}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				if _, ok, err := s.AuthenticateToken(authtest.In("aa"), tokens[i%2]); !ok {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestFreshAccounts(t *testing.T) {
	o := newObjects()
	asked, moved := 0, true
	options := o.options()
	a := o.account("aa", "ns", "robot", "u1")
	options.Fresh = func(context.Context) bool {
		asked++
		o.account("aa", "ns", "robot", "u1")
		return moved
	}
	s := newAccounts(t, options)
	token := boundToken(t, s, "aa", a, nil, 3600)
	if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); !ok || asked != 0 {
		t.Errorf("a known account: %v, %v, asked %d times", ok, err, asked)
	}
	delete(o.accounts, "aa/ns/robot")
	if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); !ok || asked != 1 {
		t.Errorf("an account that just became known: %v, %v, asked %d times", ok, err, asked)
	}
	delete(o.accounts, "aa/ns/robot")
	moved = false
	if _, ok, _ := s.AuthenticateToken(authtest.In("aa"), token); ok || asked != 2 {
		t.Errorf("decided again although nothing moved on: %v, asked %d times", ok, asked)
	}
}

func TestServiceAccountsZeroValue(t *testing.T) {
	s := newAccounts(t, ServiceAccountOptions{})
	a := newObjects().account("aa", "ns", "robot", "u1")
	if s.Issuer() != DefaultIssuer || len(s.Audiences()) != 1 || s.Audiences()[0] != DefaultIssuer {
		t.Errorf("issuer %s, audiences %v", s.Issuer(), s.Audiences())
	}
	for _, token := range []string{
		boundToken(t, s, "aa", a, nil, 3600),
		boundToken(t, s, "aa", a, &core.Secret{}, 3600),
		legacyToken(t, s, "aa", a, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}),
	} {
		if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); ok || err == nil {
			t.Errorf("a token of an unknown account is valid: %v", err)
		}
	}
	if _, err := NewServiceAccounts(ServiceAccountOptions{VerifyKeys: []any{"no key"}}); err == nil {
		t.Error("a string is accepted as a key")
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewServiceAccounts(ServiceAccountOptions{Key: small}); err == nil {
		t.Error("a curve that no token can be signed with is accepted")
	}
}

func BenchmarkAuthenticateServiceAccount(b *testing.B) {
	for _, kind := range []string{"ECDSA", "RSA"} {
		o := newObjects()
		options := o.options()
		if kind == "RSA" {
			key, err := rsa.GenerateKey(rand.Reader, 4096)
			if err != nil {
				b.Fatal(err)
			}
			options.Key = key
		}
		s := newAccounts(b, options)
		token := boundToken(b, s, "aa", o.account("aa", "ns", "robot", "u1"), nil, 3600)
		for _, c := range []cluster.Name{"aa", "bb"} {
			b.Run(fmt.Sprintf("%s/%s", kind, c), func(b *testing.B) {
				ctx := authtest.In(c)
				b.ReportAllocs()
				for b.Loop() {
					if _, ok, err := s.AuthenticateToken(ctx, token); !ok {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
