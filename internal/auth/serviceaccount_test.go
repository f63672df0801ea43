package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

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
	token, err := s.GenerateToken(in(c), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func legacyToken(t testing.TB, s *ServiceAccounts, c cluster.Name, a *corev1.ServiceAccount, secret *corev1.Secret) string {
	t.Helper()
	token, err := s.LegacyToken(in(c), a, secret)
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

func TestTokenClaims(t *testing.T) {
	o := newObjects()
	s := newAccounts(t, o.options())
	a := o.account("aa", "ns", "robot", "u1")

	bound := payload(t, boundToken(t, s, "aa", a, nil, 3600))
	inner, _ := bound["kubernetes.io"].(map[string]any)
	if inner["clusterName"] != "aa" || inner["namespace"] != "ns" || bound["iss"] != "https://kcp.default.svc" {
		t.Errorf("claims of a bound token: %v", bound)
	}
	if _, number := inner["warnafter"].(float64); !number {
		t.Errorf("warnafter is a %T, want a number", inner["warnafter"])
	}
	legacy := payload(t, legacyToken(t, s, "aa", a, o.secret("aa", "ns", "robot-token", "u2")))
	if legacy["kubernetes.io/serviceaccount/clusterName"] != "aa" || legacy["kubernetes.io/serviceaccount/namespace"] != "ns" {
		t.Errorf("claims of a legacy token: %v", legacy)
	}
	for _, c := range []cluster.Name{"", cluster.All} {
		if token, err := s.GenerateToken(in(c), &jwt.Claims{}, map[string]any{"kubernetes.io": map[string]any{"namespace": "ns"}}); err == nil {
			t.Errorf("cluster %q: signed %s", c, token)
		}
		if token, err := s.LegacyToken(in(c), a, &corev1.Secret{}); err == nil {
			t.Errorf("cluster %q: signed %s", c, token)
		}
	}
	if token, err := s.GenerateToken(in("aa"), &jwt.Claims{}, map[string]any{}); err == nil {
		t.Errorf("signed a token for no account: %s", token)
	}
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
			r, ok, err := s.AuthenticateToken(in(c), token)
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

func TestRevocation(t *testing.T) {
	type world struct {
		*objects
		secret *corev1.Secret
	}
	for name, change := range map[string]func(world){
		"account deleted":     func(w world) { delete(w.accounts, "aa/ns/robot") },
		"account re-created":  func(w world) { w.account("aa", "ns", "robot", "u9") },
		"account without UID": func(w world) { w.account("aa", "ns", "robot", "") },
		"account being deleted": func(w world) {
			w.accounts["aa/ns/robot"].DeletionTimestamp = &metav1.Time{}
		},
		"secret deleted":       func(w world) { delete(w.secrets, "aa/ns/robot-token") },
		"secret re-created":    func(w world) { w.objects.secret("aa", "ns", "robot-token", "u9") },
		"secret being deleted": func(w world) { w.secret.DeletionTimestamp = &metav1.Time{} },
	} {
		t.Run(name, func(t *testing.T) {
			o := newObjects()
			s := newAccounts(t, o.options())
			a, secret := o.account("aa", "ns", "robot", "u1"), o.secret("aa", "ns", "robot-token", "u2")
			// Objects of the same names in another cluster do not count.
			o.account("bb", "ns", "robot", "u1")
			o.secret("bb", "ns", "robot-token", "u2").Data = secret.Data
			tokens := []string{
				boundToken(t, s, "aa", a, &core.Secret{ObjectMeta: secret.ObjectMeta}, 3600),
				legacyToken(t, s, "aa", a, secret),
			}
			for i, token := range tokens {
				if _, ok, err := s.AuthenticateToken(in("aa"), token); !ok || err != nil {
					t.Errorf("token %d is not valid before: %v", i, err)
				}
			}
			change(world{o, secret})
			for i, token := range tokens {
				for _, c := range []cluster.Name{"aa", "bb", ""} {
					if r, ok, err := s.AuthenticateToken(in(c), token); ok || err == nil {
						t.Errorf("token %d is still valid in %q: %v", i, c, r.User)
					}
				}
			}
		})
	}
}

// resign returns token with some claims changed, signed by sign.
func resign(t testing.TB, token, header string, change func(map[string]any), sign func(input string) []byte) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims := payload(t, token)
	change(claims)
	data, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	if header != "" {
		parts[0] = base64.RawURLEncoding.EncodeToString([]byte(header))
	}
	input := parts[0] + "." + base64.RawURLEncoding.EncodeToString(data)
	if sign == nil {
		return input + "." + parts[2]
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(sign(input))
}

func TestForgedTokens(t *testing.T) {
	o := newObjects()
	asked := 0
	options := o.options()
	options.Fresh = func(context.Context) bool { asked++; return true }
	s := newAccounts(t, options)
	a := o.account("aa", "ns", "robot", "u1")
	o.account("bb", "ns", "robot", "u1") // the worst case: even the UID is the same
	good := boundToken(t, s, "aa", a, nil, 3600)
	to := func(c string) func(map[string]any) {
		return func(claims map[string]any) { claims["kubernetes.io"].(map[string]any)["clusterName"] = c }
	}
	same := func(map[string]any) {}
	public, err := publicKey(s)
	if err != nil {
		t.Fatal(err)
	}
	// A token with another key, and the same issuer and claims.
	other := newAccounts(t, o.options())
	legacy := legacyToken(t, s, "aa", a, o.secret("aa", "ns", "robot-token", "u2"))
	plain, err := serviceaccount.JWTTokenGenerator(DefaultIssuer, s.options.Key)
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"another cluster":         resign(t, good, "", to("bb"), nil),
		"another account":         resign(t, good, "", func(c map[string]any) { c["sub"] = "system:serviceaccount:ns:admin" }, nil),
		"legacy, another cluster": resign(t, legacy, "", func(c map[string]any) { c["kubernetes.io/serviceaccount/clusterName"] = "bb" }, nil),
		"algorithm none":          resign(t, good, `{"alg":"none"}`, same, func(string) []byte { return nil }),
		"algorithm none, upper":   resign(t, good, `{"alg":"NONE","typ":"JWT"}`, to("bb"), func(string) []byte { return nil }),
		"public key as a secret": resign(t, good, `{"alg":"HS256"}`, to("bb"), func(input string) []byte {
			mac := hmac.New(sha256.New, public)
			mac.Write([]byte(input))
			return mac.Sum(nil)
		}),
		"no signature":          resign(t, good, "", same, func(string) []byte { return nil }),
		"other key":             boundToken(t, other, "bb", o.accounts["bb/ns/robot"], nil, 3600),
		"other key, legacy":     legacyToken(t, other, "bb", o.accounts["bb/ns/robot"], o.secret("bb", "ns", "robot-token", "u2")),
		"no cluster":            boundToken(t, plain, "aa", a, nil, 3600),
		"expired":               boundToken(t, s, "aa", a, nil, -3600),
		"garbage":               "a.b.c",
		"empty":                 "",
		"white space in token":  strings.Replace(good, ".", ".\n", 1),
		"a fourth part":         good + ".x",
		"an object, not a word": `{"payload":"` + strings.Split(good, ".")[1] + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []cluster.Name{"aa", "bb", "", cluster.All} {
				if r, ok, err := s.AuthenticateToken(in(c), token); ok {
					t.Errorf("accepted in %q as %v, %v", c, r.User, err)
				}
			}
		})
	}
	if asked != 0 {
		t.Errorf("tokens that were never valid made the server wait %d times", asked)
	}
	if n := s.verified.Len(); n != 0 {
		t.Errorf("%d tokens that were never valid are remembered", n)
	}
}

// publicKey returns the published public key.
func publicKey(s *ServiceAccounts) ([]byte, error) {
	for _, k := range s.Keys().GetPublicKeys(context.Background(), "") {
		if key, ok := k.PublicKey.(*ecdsa.PublicKey); ok {
			return key.Bytes()
		}
	}
	return nil, errors.New("no public key")
}

func TestAudiences(t *testing.T) {
	o := newObjects()
	s := newAccounts(t, o.options())
	a := o.account("aa", "ns", "robot", "u1")
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: a.ObjectMeta}, nil, nil, nil, 3600, 0, []string{"vault"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := s.GenerateToken(in("aa"), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := s.AuthenticateToken(in("aa"), token); ok {
		t.Error("a token for vault is accepted by the API server")
	}
	r, ok, err := s.AuthenticateToken(authenticator.WithAudiences(in("aa"), []string{"vault"}), token)
	if err != nil || !ok || cmp.Diff(authenticator.Audiences{"vault"}, r.Audiences) != "" {
		t.Errorf("a token for vault, asked for vault: %v, %v", ok, err)
	}
	for c, ctx := range map[string]context.Context{"the API server": in("aa"), "db": authenticator.WithAudiences(in("aa"), []string{"db"})} {
		if _, ok, err := s.AuthenticateToken(ctx, token); ok || err == nil {
			t.Errorf("a token known to be for vault is accepted for %s", c)
		}
	}
	both := authenticator.WithAudiences(in("aa"), []string{"db", "vault"})
	if r, ok, err := s.AuthenticateToken(both, token); !ok || cmp.Diff(authenticator.Audiences{"vault"}, r.Audiences) != "" {
		t.Errorf("a token for vault, asked for db or vault: %v, %v", ok, err)
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
		token, err := s.GenerateToken(in("aa"), claims, private)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := s.AuthenticateToken(in("aa"), token); ok || err == nil {
			t.Errorf("a token bound to a %s is valid", name)
		}
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects()
		s := newAccounts(t, o.options())
		token := boundToken(t, s, "aa", o.account("aa", "ns", "robot", "u1"), nil, 3600)
		for range 2 { // the second time its signature is known already
			if _, ok, err := s.AuthenticateToken(in("aa"), token); !ok {
				t.Fatal(err)
			}
		}
		<-time.After(2 * time.Hour)
		if _, ok, err := s.AuthenticateToken(in("aa"), token); ok || err == nil {
			t.Error("an expired token is still valid")
		}
	})
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
				if _, ok, err := s.AuthenticateToken(in("aa"), tokens[i%2]); !ok {
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
	if _, ok, err := s.AuthenticateToken(in("aa"), token); !ok || asked != 0 {
		t.Errorf("a known account: %v, %v, asked %d times", ok, err, asked)
	}
	delete(o.accounts, "aa/ns/robot")
	if _, ok, err := s.AuthenticateToken(in("aa"), token); !ok || asked != 1 {
		t.Errorf("an account that just became known: %v, %v, asked %d times", ok, err, asked)
	}
	delete(o.accounts, "aa/ns/robot")
	moved = false
	if _, ok, _ := s.AuthenticateToken(in("aa"), token); ok || asked != 2 {
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
		if _, ok, err := s.AuthenticateToken(in("aa"), token); ok || err == nil {
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

func TestServiceAccountKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pki", "sa.key")
	const starts = 8
	keys := make([]crypto.Signer, starts)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			key, err := ServiceAccountKey(path)
			if err != nil {
				t.Error(err)
			}
			keys[i] = key
		})
	}
	wg.Wait()
	for i, k := range keys {
		if !k.Public().(*ecdsa.PublicKey).Equal(keys[0].Public()) {
			t.Errorf("start %d has another key", i)
		}
	}
	onlyFile(t, path)

	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(path, data); err != nil {
		t.Fatal(err)
	}
	key, err := ServiceAccountKey(path)
	if err != nil || !old.Equal(key) {
		t.Errorf("an RSA key is not used as it is: %T, %v", key, err)
	}
	o := newObjects()
	options := o.options()
	options.Key, options.VerifyKeys = keys[0], []any{old.Public()}
	rotated, before := newAccounts(t, options), newAccounts(t, ServiceAccountOptions{Key: key})
	token := boundToken(t, before, "aa", o.account("aa", "ns", "robot", "u1"), nil, 3600)
	if _, ok, err := rotated.AuthenticateToken(in("aa"), token); !ok {
		t.Errorf("a token signed with the old key: %v", err)
	}

	if err := os.WriteFile(path, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := ServiceAccountKey(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file gives %v, %v; want an error that names it", key, err)
	}
	if _, err := ServiceAccountKey(t.TempDir()); err == nil {
		t.Error("a directory is accepted as a key file")
	}
}

// onlyFile checks that only the owner can read path, and that its directory has no other files.
func onlyFile(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v", path, info.Mode())
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), filepath.Base(path)) && e.Name() != filepath.Base(path) {
			t.Errorf("left over: %s", e.Name())
		}
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
				ctx := in(c)
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
