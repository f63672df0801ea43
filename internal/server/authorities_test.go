package server_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/backup"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// trusts waits until the administrators' kubeconfig, the config maps of workspaces and a token
// secret have the authorities in PEM.
func (s *operated) trusts(t *testing.T, c *tenant, want []byte) {
	t.Helper()
	has := func(o *unstructured.Unstructured) bool { return text(o, "data", "ca.crt") == string(want) }
	for _, namespace := range []string{"default", "kube-system"} {
		c.await(core("configmaps"), namespace, "kube-root-ca.crt", has)
	}
	secret := func(o *unstructured.Unstructured) bool {
		s := &corev1.Secret{}
		return text(o, "data", "token") != "" && runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s) == nil && bytes.Equal(s.Data["ca.crt"], want)
	}
	c.await(core("secrets"), "default", "robot", secret)
	eventually(t, "the kubeconfig has the authorities", func() bool {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "admin.kubeconfig"))
		return err == nil && bytes.Equal(config.CAData, want)
	})
}

// verified reports whether a new connection verifies the server with these authorities.
func (s *operated) verified(t *testing.T, ca []byte) bool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("no certificates in %s", ca)
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots}}).DialContext(t.Context(), "tcp", s.at)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// withTokenSecret returns a workspace with a token secret.
func (s *operated) withTokenSecret(t *testing.T) *tenant {
	t.Helper()
	c := at(t, &running{Server: s.Server}, cluster.Root, server.System()).workspace("w")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	must(c.kube.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}))(t)
	secret := &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken, ObjectMeta: metav1.ObjectMeta{Name: "robot", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}}}
	must(c.kube.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	return c
}

// The server takes in changes of the authority of its own certificate: what clients trust follows.
func TestOwnAuthorityChangesWithoutRestart(t *testing.T) {
	t.Parallel()
	s := operate(t, t.TempDir(), server.Operation{})
	c := s.withTokenSecret(t)
	certFile, keyFile := filepath.Join(s.dir, "apiserver-ca.crt"), filepath.Join(s.dir, "apiserver-ca.key")
	first := must(os.ReadFile(certFile))(t)
	s.trusts(t, c, first)

	more := must(credentials.LoadAuthorities(t.Context(), filepath.Join(t.TempDir(), "crt"), filepath.Join(t.TempDir(), "key")))(t)
	write(t, certFile, slices.Concat(first, more.Bundle()))
	s.trusts(t, c, slices.Concat(first, more.Bundle()))
	if !s.verified(t, first) {
		t.Error("an authority that was just appended has signed the certificate")
	}
	must(0, os.Remove(keyFile))(t)
	must(0, os.Remove(certFile))(t)
	eventually(t, "there is a new authority", func() bool { return !s.verified(t, first) })
	last := must(os.ReadFile(certFile))(t)
	s.trusts(t, c, last)
	if !s.verified(t, last) {
		t.Error("clients cannot verify the server")
	}
}

// Configured certificates may have another authority after a change of their files. One that is
// appended to the file is trusted before it signs.
func TestConfiguredAuthorityChangesWithoutRestart(t *testing.T) {
	t.Parallel()
	certs, further := t.TempDir(), t.TempDir()
	o := server.DefaultOperation()
	pair := &o.Serving.ServerCert.CertKey
	var authority *tls.Certificate
	pair.CertFile, pair.KeyFile, authority = issued(t, certs, "127.0.0.1", nil)
	s := operate(t, t.TempDir(), o)
	c := s.withTokenSecret(t)
	first := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]})
	s.trusts(t, c, first)

	nextCert, nextKey, next := issued(t, further, "127.0.0.1", nil)
	second := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: next.Certificate[0]})
	write(t, pair.CertFile, slices.Concat(must(os.ReadFile(pair.CertFile))(t), second))
	s.trusts(t, c, slices.Concat(first, second))
	if !s.verified(t, first) || s.verified(t, second) {
		t.Error("the appended authority verifies the certificate")
	}
	write(t, pair.KeyFile, must(os.ReadFile(nextKey))(t))
	write(t, pair.CertFile, slices.Concat(must(os.ReadFile(nextCert))(t), first))
	s.trusts(t, c, slices.Concat(second, first))
	eventually(t, "the new authority verifies the certificate", func() bool { return s.verified(t, second) && !s.verified(t, first) })
}

// Files of authorities of client certificates and of proxies are read again.
func TestClientAuthoritiesChangeWithoutRestart(t *testing.T) {
	t.Parallel()
	old, next, proxies := newCertAuthority(t), newCertAuthority(t), newCertAuthority(t)
	clientCA, proxyCA := old.file(t), old.file(t)
	r := startWith(t, func(string) server.Access {
		o := authn.DefaultOptions()
		o.ClientCert.ClientCA, o.RequestHeader.ClientCAFile = clientCA, proxyCA
		o.RequestHeader.AllowedNames, o.RequestHeader.UsernameHeaders = []string{"proxy"}, []string{"X-Remote-User"}
		return server.Access{Authentication: o}
	})
	c := r.tenant(t)
	c.grant("everybody", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"})
	is := func(a *certAuthority, name, want string) bool {
		config := c.withToken("")
		config.TLSClientConfig = a.client(t, name)
		config.CAData = r.ca
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return asBob{next}
		})
		got, err := c.who(config)
		if is := got == want && (want == "") == apierrors.IsUnauthorized(err); !is {
			t.Logf("%s is %q, not %q: %v", name, got, want, err)
			return false
		}
		return true
	}
	if !is(old, "jane", "jane") || !is(next, "jane", "") || !is(old, "proxy", "bob") {
		t.Fatal("before the change")
	}
	both := must(cert.EncodeCertificates(old.cert, next.cert))(t)
	write(t, clientCA, both)
	eventually(t, "the new authority is trusted", func() bool { return is(next, "jane", "jane") })
	eventually(t, "the old authority is trusted beside it", func() bool { return is(old, "jane", "jane") })
	write(t, clientCA, must(cert.EncodeCertificates(next.cert))(t))
	eventually(t, "the old authority is not trusted", func() bool { return is(old, "jane", "") })
	write(t, proxyCA, must(cert.EncodeCertificates(proxies.cert))(t))
	eventually(t, "the authority of proxies has changed", func() bool { return is(proxies, "proxy", "bob") && !is(old, "proxy", "bob") })
}

// asBob sets the header of proxies.
type asBob struct{ next http.RoundTripper }

func (b asBob) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("X-Remote-User", "bob")
	return b.next.RoundTrip(req)
}

// signedFor returns a certificate of a workspace for jane.
func (c *tenant) signedFor(name string) *x509.Certificate {
	c.t.Helper()
	signed := c.issued(certificateRequest(c.t, name, certificatesv1.KubeAPIServerClientSignerName, "jane"))
	block, _ := pem.Decode(signed.Status.Certificate)
	if block == nil {
		c.t.Fatalf("no certificate: %v", signed.Status)
	}
	return must(x509.ParseCertificate(block.Bytes))(c.t)
}

// Servers on one etcd follow the authorities there. Certificates of the old authority of clients
// are valid until it is removed.
func TestSharedAuthoritiesChangeWithoutRestart(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 0, etcdtest.Options{})
	one, two := e.with(""), e.with("")
	e.ok(one.err)
	e.ok(two.err)
	c := e.workspace(one.Server, "root", "mine")
	in := &tenant{t: t, name: c, kube: e.kube(one.Server, string(c), server.System()), any: e.dynamic(one.Server, string(c))}
	before := in.signedFor("before")
	whole := must(one.Store().RawClient().Get(t.Context(), one.Store().Prefix()+"/s/core/common/-/system:admin/client-authority"))(t).Kvs[0]
	put := func(value []byte) {
		t.Helper()
		must(one.Store().RawClient().Put(t.Context(), string(whole.Key), string(value)))(t)
	}
	more := must(credentials.LoadAuthorities(t.Context(), filepath.Join(t.TempDir(), "crt"), filepath.Join(t.TempDir(), "key")))(t)
	key := must(more.Keys())(t)
	is := func(s keyed, of *x509.Certificate) bool { return s.UserOf(t.Context(), c, of) == "jane" }
	by := func(of *x509.Certificate) bool { return of.CheckSignatureFrom(more.Signer().Leaf) == nil }

	put(slices.Concat(more.Bundle(), key, whole.Value)) // the new one signs
	var after *x509.Certificate
	names := 0
	eventually(t, "the new authority signs", func() bool {
		names++
		after = in.signedFor(fmt.Sprint("after-", names))
		return by(after)
	})
	for _, s := range []keyed{one, two} {
		e.ok(s.Store().Feed().CatchUp(t.Context()))
		eventually(t, "certificates of both authorities are valid", func() bool { return is(s, before) && is(s, after) })
	}
	put(slices.Concat(more.Bundle(), key))
	for _, s := range []keyed{one, two} {
		eventually(t, "certificates of the old authority are invalid", func() bool { return !is(s, before) && is(s, after) })
	}
	put([]byte("damaged"))
	third := in.signedFor("third")
	if !by(third) || !is(two, third) {
		t.Error("a damaged value has changed the authority")
	}
	put(whole.Value)
	eventually(t, "the value is mended", func() bool { return is(one, before) && !is(one, after) })
}

// Client certificates of workspaces are valid after a restore, unless it leaves out the credentials.
func TestClientCertificatesAfterRestore(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 1, etcdtest.Options{})
	c := e.workspace(e.all[0], "root", "mine")
	in := &tenant{t: t, name: c, kube: e.kube(e.all[0], string(c), server.System()), any: e.dynamic(e.all[0], string(c))}
	of := in.signedFor("jane")
	_, saved := fetchBackup(t, e.all[0], "/backup", server.System())
	for name, o := range map[string]struct {
		target backup.Target
		want   string
	}{"kept": {want: "jane"}, "new": {target: backup.Target{Without: func(key string) bool { return strings.Contains(key, "/common/") }}}} {
		dir := t.TempDir()
		o.target.Dir = filepath.Join(dir, "etcd-server")
		r := must(backup.NewReader(bytes.NewReader(saved)))(t)
		must(r.Restore(t.Context(), o.target))(t)
		s := start(t, dir)
		if got := s.UserOf(t.Context(), c, of); got != o.want && (o.want != "" || got == "jane") {
			t.Errorf("%s: after the restore, the certificate is for %q", name, got)
		}
		later := (&tenant{t: t, name: c, kube: e.kube(s.Server, string(c), server.System()), any: e.dynamic(s.Server, string(c))}).signedFor("later")
		if got := s.UserOf(t.Context(), c, later); got != "jane" {
			t.Errorf("%s: a certificate of the restored server is for %q", name, got)
		}
		s.Close()
	}
}
