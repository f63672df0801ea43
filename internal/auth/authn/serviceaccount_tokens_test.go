package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

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
		if token, err := s.GenerateToken(authtest.In(c), &jwt.Claims{}, map[string]any{"kubernetes.io": map[string]any{"namespace": "ns"}}); err == nil {
			t.Errorf("cluster %q: signed %s", c, token)
		}
		if token, err := s.LegacyToken(authtest.In(c), a, &corev1.Secret{}); err == nil {
			t.Errorf("cluster %q: signed %s", c, token)
		}
	}
	if token, err := s.GenerateToken(authtest.In("aa"), &jwt.Claims{}, map[string]any{}); err == nil {
		t.Errorf("signed a token for no account: %s", token)
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
				if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); !ok || err != nil {
					t.Errorf("token %d is not valid before: %v", i, err)
				}
			}
			change(world{o, secret})
			for i, token := range tokens {
				for _, c := range []cluster.Name{"aa", "bb", ""} {
					if r, ok, err := s.AuthenticateToken(authtest.In(c), token); ok || err == nil {
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
				if r, ok, err := s.AuthenticateToken(authtest.In(c), token); ok {
					t.Errorf("accepted in %q as %v, %v", c, r.User, err)
				}
			}
		})
	}
	if asked != 0 {
		t.Errorf("tokens that were never valid made the server wait %d times", asked)
	}
	if n := s.keys.now.Load().verified.Len(); n != 0 {
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
	token, err := s.GenerateToken(authtest.In("aa"), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := s.AuthenticateToken(authtest.In("aa"), token); ok {
		t.Error("a token for vault is accepted by the API server")
	}
	r, ok, err := s.AuthenticateToken(authenticator.WithAudiences(authtest.In("aa"), []string{"vault"}), token)
	if err != nil || !ok || cmp.Diff(authenticator.Audiences{"vault"}, r.Audiences) != "" {
		t.Errorf("a token for vault, asked for vault: %v, %v", ok, err)
	}
	for c, ctx := range map[string]context.Context{"the API server": authtest.In("aa"), "db": authenticator.WithAudiences(authtest.In("aa"), []string{"db"})} {
		if _, ok, err := s.AuthenticateToken(ctx, token); ok || err == nil {
			t.Errorf("a token known to be for vault is accepted for %s", c)
		}
	}
	both := authenticator.WithAudiences(authtest.In("aa"), []string{"db", "vault"})
	if r, ok, err := s.AuthenticateToken(both, token); !ok || cmp.Diff(authenticator.Audiences{"vault"}, r.Audiences) != "" {
		t.Errorf("a token for vault, asked for db or vault: %v, %v", ok, err)
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects()
		s := newAccounts(t, o.options())
		token := boundToken(t, s, "aa", o.account("aa", "ns", "robot", "u1"), nil, 3600)
		for range 2 { // the second time its signature is known already
			if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); !ok {
				t.Fatal(err)
			}
		}
		<-time.After(2 * time.Hour)
		if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); ok || err == nil {
			t.Error("an expired token is still valid")
		}
	})
}
