package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/apis/authentication"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

// issuer signs client certificates.
type issuer struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "clients"}, key)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{key, c}
}

func (i issuer) file(t *testing.T) string {
	t.Helper()
	data, err := cert.EncodeCertificates(i.cert)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (i issuer) client(t *testing.T, name string, groups ...string) *tls.ConnectionState {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, i.key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
}

// options are the defaults, changed.
func options(change func(*kubeoptions.BuiltInAuthenticationOptions)) *kubeoptions.BuiltInAuthenticationOptions {
	o := DefaultOptions()
	change(o)
	return o
}

func withToken(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

func TestAuthenticate(t *testing.T) {
	ca, stranger := newIssuer(t), newIssuer(t)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("t0k3n,dora,u7,\"dev,ops\"\nplain,emil,u8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := newObjects()
	accounts := newAccounts(t, o.options())
	robot := boundToken(t, accounts, "aa", o.account("aa", "ns", "robot", "u1"), nil, 3600)
	admins := NewAdmins(adminTokens)
	a, err := NewAuthenticators(Authentication{Admins: admins, ServiceAccounts: accounts, Options: options(func(o *kubeoptions.BuiltInAuthenticationOptions) {
		o.ClientCert.ClientCA, o.TokenFile.TokenFile = ca.file(t), tokens
	})})
	if err != nil {
		t.Fatal(err)
	}
	if a.ClientCA == nil || cmp.Diff(accounts.Audiences(), a.Audiences) != "" {
		t.Errorf("client CA %v, audiences %v", a.ClientCA, a.Audiences)
	}
	socket := func(token string) http.Header {
		return http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token)) + ",v4.channel.k8s.io"},
		}
	}
	type who struct {
		Name   string
		Groups []string
	}
	dora := who{"dora", []string{"dev", "ops", "system:authenticated"}}
	for name, tt := range map[string]struct {
		in     cluster.Name
		header http.Header
		tls    *tls.ConnectionState
		want   who // nobody: 401
	}{
		"kcp-admin":                           {"aa", withToken(adminTokens.Kcp), nil, who{"kcp-admin", []string{"system:kcp:admin", "system:authenticated"}}},
		"shard-admin":                         {cluster.All, withToken(adminTokens.Shard), nil, who{"shard-admin", []string{"system:masters", "system:authenticated"}}},
		"admin over a web socket":             {"aa", socket(adminTokens.Kcp), nil, who{"kcp-admin", []string{"system:kcp:admin", "system:authenticated"}}},
		"certificate":                         {"aa", nil, ca.client(t, "carl", "dev"), who{"carl", []string{"dev", "system:authenticated"}}},
		"admin before certificate":            {"aa", withToken(adminTokens.Kcp), ca.client(t, "carl"), who{"kcp-admin", []string{"system:kcp:admin", "system:authenticated"}}},
		"certificate before token":            {"aa", withToken("t0k3n"), ca.client(t, "carl"), who{"carl", []string{"system:authenticated"}}},
		"certificate of another CA":           {"aa", nil, stranger.client(t, "carl", "system:masters"), who{}},
		"token of the file":                   {"aa", withToken("t0k3n"), nil, dora},
		"without groups":                      {"", withToken("plain"), nil, who{"emil", []string{"system:authenticated"}}},
		"over a web socket":                   {"aa", socket("t0k3n"), nil, dora},
		"account at home":                     {"aa", withToken(robot), nil, who{"system:serviceaccount:ns:robot", []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"}}},
		"account elsewhere":                   {"bb", withToken(robot), nil, who{"system:kcp:serviceaccount:aa:ns:robot", []string{"system:authenticated", "system:cluster:aa"}}},
		"account over a web socket elsewhere": {"bb", socket(robot), nil, who{"system:kcp:serviceaccount:aa:ns:robot", []string{"system:authenticated", "system:cluster:aa"}}},
		"unknown token":                       {"aa", withToken("wrong"), nil, who{}},
		"unknown token in a web socket":       {"aa", socket("wrong"), nil, who{}},
		"hash instead of a token":             {"aa", withToken(base64.StdEncoding.EncodeToString(admins.kcp[:])), nil, who{}},
		"no credentials":                      {"aa", nil, nil, who{"system:anonymous", []string{"system:unauthenticated"}}},
		"no bearer":                           {"aa", http.Header{"Authorization": {"Basic eDp5"}}, nil, who{"system:anonymous", []string{"system:unauthenticated"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &http.Request{Header: tt.header, TLS: tt.tls}
			if r.Header == nil {
				r.Header = http.Header{}
			}
			response, ok, err := a.AuthenticateRequest(r.WithContext(authtest.In(tt.in)))
			if tt.want.Name == "" {
				if ok || err == nil {
					t.Fatalf("accepted as %v, %v", response, err)
				}
				return
			}
			if err != nil || !ok {
				t.Fatalf("%v, %v", ok, err)
			}
			if diff := cmp.Diff(tt.want, who{response.User.GetName(), response.User.GetGroups()}); diff != "" {
				t.Error(diff)
			}
			if ok && r.Header.Get("Authorization") != "" && tt.want.Name != "system:anonymous" && tt.tls == nil {
				t.Error("the token is still in the request")
			}
		})
	}
}

func TestAuthenticationZeroValue(t *testing.T) {
	a, err := NewAuthenticators(Authentication{})
	if err != nil {
		t.Fatal(err)
	}
	if r, ok, err := a.AuthenticateRequest(&http.Request{Header: http.Header{}}); !ok || r.User.GetName() != "system:anonymous" {
		t.Errorf("%v, %v, %v", r, ok, err)
	}
	if a, err = NewAuthenticators(Authentication{Options: options(func(o *kubeoptions.BuiltInAuthenticationOptions) { o.Anonymous.Allow = false })}); err != nil {
		t.Fatal(err)
	}
	if r, ok, err := a.AuthenticateRequest(&http.Request{Header: http.Header{}}); ok || err != nil {
		t.Errorf("%v, %v, %v", r, ok, err)
	}
}

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func TestTokenReview(t *testing.T) {
	o := newObjects()
	accounts := newAccounts(t, o.options())
	account, secret := o.account("aa", "ns", "robot", "u1"), o.secret("aa", "ns", "t", "u2")
	robot, legacy := boundToken(t, accounts, "aa", account, nil, 3600), legacyToken(t, accounts, "aa", account, secret)
	account.Secrets = []corev1.ObjectReference{{Name: "t"}} // its use gives a warning
	admins := NewAdmins(adminTokens)
	a, err := NewAuthenticators(Authentication{Admins: admins, ServiceAccounts: accounts})
	if err != nil {
		t.Fatal(err)
	}
	reviews := NewTokenReviews(a)
	for name, tt := range map[string]struct {
		in        cluster.Name
		token     string
		audiences []string
		user      string // nobody: not authenticated
	}{
		"at home":                   {"aa", robot, nil, "system:serviceaccount:ns:robot"},
		"at home, its audience":     {"aa", robot, []string{DefaultIssuer, "x"}, "system:serviceaccount:ns:robot"},
		"at home, other audience":   {"aa", robot, []string{"x"}, ""},
		"at home, legacy":           {"aa", legacy, nil, "system:serviceaccount:ns:robot"},
		"elsewhere":                 {"bb", robot, nil, "system:kcp:serviceaccount:aa:ns:robot"},
		"elsewhere, legacy":         {"bb", legacy, nil, "system:kcp:serviceaccount:aa:ns:robot"},
		"administrator":             {"bb", adminTokens.Kcp, nil, "kcp-admin"},
		"unknown":                   {"aa", "unknown", nil, ""},
		"no account of this server": {"aa", "e30.eyJrdWJlcm5ldGVzLmlvIjp7ImNsdXN0ZXJOYW1lIjoiYWEifX0.x", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			asker := &warnings{}
			ctx := warning.WithWarningRecorder(authtest.In(tt.in), asker)
			out, err := reviews.Create(ctx, &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: tt.token, Audiences: tt.audiences}}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := out.(*authentication.TokenReview).Status
			if got.Authenticated != (tt.user != "") || got.User.Username != tt.user || (got.Error != "") == got.Authenticated {
				t.Errorf("got %+v, want user %q", got, tt.user)
			}
			if len(*asker) > 0 {
				t.Errorf("the asker is warned: %q", *asker)
			}
			if got.Authenticated && len(got.Audiences) != 1 {
				t.Errorf("audiences %v", got.Audiences)
			}
		})
	}
	for name, tt := range map[string]struct {
		ctx context.Context
		obj runtime.Object
	}{
		"no token":     {authtest.In("aa"), &authentication.TokenReview{}},
		"a namespace":  {request.WithNamespace(authtest.In("aa"), "ns"), &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: robot}}},
		"another kind": {authtest.In("aa"), &authentication.SelfSubjectReview{}},
	} {
		if out, err := reviews.Create(tt.ctx, tt.obj, nil, nil); err == nil {
			t.Errorf("%s: got %v, want an error", name, out)
		}
	}
	refuse := func(context.Context, runtime.Object) error { return os.ErrPermission }
	if _, err := reviews.Create(authtest.In("aa"), &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: robot}}, refuse, nil); err == nil {
		t.Error("admission is not asked")
	}
	if _, ok := reviews.New().(*authentication.TokenReview); !ok || reviews.NamespaceScoped() || reviews.GetSingularName() != "tokenreview" {
		t.Error("not the storage of tokenreviews")
	}
	reviews.Destroy()
}
