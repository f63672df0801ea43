package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// A server does not start on an etcd where it would refuse the tokens of other servers, or
// they its tokens. The key can still be changed in steps.
func TestSigningKeysOfSeveralServers(t *testing.T) {
	e := &equals{t: t, etcd: etcdtest.Start(t, etcdtest.Options{})}
	one, two := signingKey(t, "one"), signingKey(t, "two")
	first := e.with(one)
	e.ok(first.err)
	token := e.token(first.Server)

	for name, wrong := range map[string]keyed{"another key": e.with(two), "a key of its own": e.with("")} {
		if wrong.err == nil || !strings.Contains(wrong.err.Error(), "--service-account-signing-key-file") || strings.Contains(wrong.err.Error(), "\n") {
			t.Errorf("%s: %v", name, wrong.err)
		}
	}
	same := e.with(one)
	e.ok(same.err)
	e.accepts(same.Server, token)

	// First all servers accept the new key, then they sign with it, then the old key is
	// removed.
	knows := e.with(one, two)
	e.ok(knows.err)
	changed := e.with(two, one)
	e.ok(changed.err)
	e.accepts(changed.Server, token)
	e.accepts(knows.Server, e.token(changed.Server))
	if old := e.with(one); old.err == nil || !strings.Contains(old.err.Error(), "--service-account-key-file") {
		t.Errorf("one that knows nothing of the new key: %v", old.err)
	}
	last := e.with(two)
	e.ok(last.err)
	e.accepts(last.Server, e.token(changed.Server))
}

// The keys of running servers change with their files, in the same steps. Files that cannot be
// read change nothing.
func TestSigningKeysChangeWithoutRestart(t *testing.T) {
	e := &equals{t: t, etcd: etcdtest.Start(t, etcdtest.Options{})}
	old, fresh := must(os.ReadFile(signingKey(t, "old")))(t), must(os.ReadFile(signingKey(t, "new")))(t)
	type files struct {
		*server.Server
		signs, knows string
	}
	var all []files
	for range 2 {
		f := files{signs: filepath.Join(t.TempDir(), "signs"), knows: filepath.Join(t.TempDir(), "knows")}
		write(t, f.signs, old)
		write(t, f.knows, old)
		k := e.with(f.signs, f.knows)
		e.ok(k.err)
		f.Server = k.Server
		all = append(all, f)
	}
	one, two := all[0], all[1]
	before := e.token(one.Server)

	for _, f := range all {
		write(t, f.knows, slices.Concat(old, fresh))
	}
	write(t, one.signs, fresh)
	eventually(t, "one signs with the new key", func() bool { return signer(t, e.token(one.Server)) != signer(t, before) })
	after := e.token(one.Server)
	for _, f := range all {
		eventually(t, "both accept the new key", func() bool { return e.accepted(f.Server, after) })
		e.accepts(f.Server, before)
	}
	write(t, two.signs, fresh)
	for _, f := range all {
		write(t, f.knows, fresh)
		eventually(t, "tokens of the old key end", func() bool { return !e.accepted(f.Server, before) })
		e.accepts(f.Server, after)
	}
	eventually(t, "two signs with the new key", func() bool { return signer(t, e.token(two.Server)) == signer(t, after) })
	write(t, two.signs, []byte("damaged"))
	e.accepts(two.Server, after)
	e.accepts(one.Server, e.token(two.Server))
}

// signer returns the identifier of the key that signed a token.
func signer(t *testing.T, token string) string {
	t.Helper()
	header, _, _ := strings.Cut(token, ".")
	var h struct{ Kid string }
	if err := json.Unmarshal(must(base64.RawURLEncoding.DecodeString(header))(t), &h); err != nil || h.Kid == "" {
		t.Fatal(err, header)
	}
	return h.Kid
}

// Servers without a configured key share one in etcd. A server with a different key does not
// start.
func TestSigningKeyIsGivenLater(t *testing.T) {
	e := startEquals(t, 1, etcdtest.Options{})
	if given := e.with(signingKey(t, "given")); given.err == nil || !strings.Contains(given.err.Error(), "--service-account-signing-key-file") {
		t.Errorf("another key than that of the servers before: %v", given.err)
	}
}

// A certificate that one server issued is valid at all, also at one that starts later.
func TestClientCertificatesOfSeveralServers(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 2, etcdtest.Options{})
	c := e.workspace(e.all[0], "root", "mine")
	in := &tenant{t: t, name: c, kube: e.kube(e.all[0], string(c), server.System()), any: e.dynamic(e.all[0], string(c))}
	signed := in.issued(certificateRequest(t, "jane", certificatesv1.KubeAPIServerClientSignerName, "jane"))
	block, _ := pem.Decode(signed.Status.Certificate)
	if block == nil {
		t.Fatalf("no certificate: %v", signed.Status)
	}
	certificate := must(x509.ParseCertificate(block.Bytes))(t)
	third := must(e.start())(t)
	t.Cleanup(third.Close)
	for _, s := range append(e.all, third) {
		e.ok(s.Store().Feed().CatchUp(t.Context()))
		if got := s.UserOf(t.Context(), c, certificate); got != "jane" {
			t.Errorf("the certificate is for %q", got)
		}
		if got := s.UserOf(t.Context(), "root", certificate); got == "jane" {
			t.Error("the certificate is valid in another cluster")
		}
	}
}

// keyed is a server, or the error of its start.
type keyed struct {
	*server.Server
	err error
}

// with starts a server that signs with the key in one file and also accepts the keys in
// others.
func (e *equals) with(signs string, knows ...string) keyed {
	e.t.Helper()
	o := authn.DefaultOptions()
	o.ServiceAccounts.KeyFiles = knows
	s, err := server.New(context.Background(), server.Config{
		Dir: e.t.TempDir(), Etcd: etcd.Config{Servers: e.etcd.Servers()}, ExternalURL: "https://kcp.example.com",
		Access: server.Access{Authentication: o, SigningKeyFile: signs, KeysEvery: 20 * time.Millisecond},
	})
	if err == nil {
		e.t.Cleanup(s.Close)
	}
	return keyed{s, err}
}

// token returns a token of the default service account in root.
func (e *equals) token(s *server.Server) string {
	e.t.Helper()
	r, err := e.kube(s, "root", server.System()).CoreV1().ServiceAccounts("default").CreateToken(e.t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	e.ok(err)
	return r.Status.Token
}

func (e *equals) accepts(s *server.Server, token string) {
	e.t.Helper()
	if !e.accepted(s, token) {
		e.t.Error("a token is not accepted")
	}
}

func (e *equals) accepted(s *server.Server, token string) bool {
	e.t.Helper()
	review, err := e.kube(s, "root", server.System()).AuthenticationV1().TokenReviews().Create(e.t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	e.ok(err)
	return review.Status.Authenticated
}

// signingKey writes a new key and returns its file.
func signingKey(t *testing.T, name string) string {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	path := filepath.Join(t.TempDir(), name+".key")
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(key))(t)}))
	return path
}
