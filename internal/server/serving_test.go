package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/server"
)

// An operated is a server for one test with the given options and a listener.
type operated struct {
	*server.Server
	dir, at string
	admin   *rest.Config // the user of the kubeconfig
}

func operate(t *testing.T, dir string, o server.Operation) *operated {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &operated{dir: dir, at: listener.Addr().String()}
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	tokens := filepath.Join(dir, "tokens.csv")
	write(t, tokens, []byte("alices-token,alice,alice\n"))
	access := server.Access{Authentication: authn.DefaultOptions()}
	access.Authentication.TokenFile.TokenFile, access.KeysEvery = tokens, 20*time.Millisecond
	s.Server = must(server.New(t.Context(), server.Config{
		Dir: dir, NoSync: true, Listener: listener, ExternalURL: "https://" + s.at, Kubeconfig: kubeconfig, Access: access, Operation: o,
	}))(t)
	t.Cleanup(s.Close)
	s.admin = must(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	s.admin.QPS = -1
	return s
}

// client returns a client in the cluster at a path: of the administrator, or with a token if
// it is not empty.
func (s *operated) client(t *testing.T, at, token string) *kubernetes.Clientset {
	t.Helper()
	c := rest.CopyConfig(s.admin)
	c.Host = "https://" + s.at + "/clusters/" + at
	if token != "" {
		c.BearerToken = token
	}
	h := must(rest.HTTPClientFor(c))(t)
	t.Cleanup(h.CloseIdleConnections)
	return must(kubernetes.NewForConfigAndClient(c, h))(t)
}

// shardAdmin returns the token of the administrator in system:masters.
func shardAdmin(t *testing.T, s *operated) string {
	t.Helper()
	all := must(clientcmd.LoadFromFile(filepath.Join(s.dir, "admin.kubeconfig")))(t)
	return all.AuthInfos[authn.ShardAdmin].Token
}

// do sends a request with the administrator's token.
func (s *operated) do(t *testing.T, method, path string, header http.Header) *http.Response {
	t.Helper()
	client := must(rest.HTTPClientFor(s.admin))(t)
	t.Cleanup(client.CloseIdleConnections)
	req := must(http.NewRequestWithContext(t.Context(), method, "https://"+s.at+path, nil))(t)
	for k, v := range header {
		req.Header[k] = v
	}
	resp := must(client.Do(req))(t)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// issued writes a new certificate for a host.
func issued(t *testing.T, dir, host string, by *tls.Certificate) (certFile, keyFile string, authority *tls.Certificate) {
	t.Helper()
	cert, key, authority, err := server.IssueForTest(host, by)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, host+".crt"), filepath.Join(dir, host+".key")
	write(t, keyFile, key)
	write(t, certFile, cert)
	return certFile, keyFile, authority
}

func shake(t *testing.T, at string, c *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	c.InsecureSkipVerify = true
	conn, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", at)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// A server uses the configured certificates, reloads them when their files change, and writes
// the CA into the administrators' kubeconfig.
func TestServingCertificates(t *testing.T) {
	t.Parallel()
	certs := t.TempDir()
	o := server.DefaultOperation()
	pair := &o.Serving.ServerCert.CertKey
	var authority *tls.Certificate
	pair.CertFile, pair.KeyFile, authority = issued(t, certs, "127.0.0.1", nil)
	sniCert, sniKey, _ := issued(t, certs, "kcp.example.com", nil)
	o.Serving.SNICertKeys = []cliflag.NamedCertKey{{CertFile: sniCert, KeyFile: sniKey}}
	o.Serving.MinTLSVersion = "VersionTLS13"
	o.Serving.CurvePreferences = []int32{int32(tls.CurveP256)}
	o.Serving.DisableHTTP2Serving = true
	s := operate(t, t.TempDir(), o)

	if _, err := s.client(t, "root", "").Discovery().ServerVersion(); err != nil {
		t.Errorf("the administrators' kubeconfig does not verify the certificate: %v", err)
	}
	first, err := shake(t, s.at, &tls.Config{NextProtos: []string{"h2", "http/1.1"}})
	if err != nil || first.PeerCertificates[0].Subject.CommonName != "127.0.0.1" {
		t.Errorf("the default certificate: %v", err)
	}
	if first.NegotiatedProtocol == "h2" {
		t.Error("HTTP/2 is served")
	}
	if sni, err := shake(t, s.at, &tls.Config{ServerName: "kcp.example.com"}); err != nil || sni.PeerCertificates[0].Subject.CommonName != "kcp.example.com" {
		t.Errorf("the certificate of a name: %v", err)
	}
	if _, err := shake(t, s.at, &tls.Config{MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
	if _, err := shake(t, s.at, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}); err == nil {
		t.Error("a curve that is not preferred is used")
	}
	issued(t, certs, "127.0.0.1", authority)
	eventually(t, "the new certificate is served", func() bool {
		now, err := shake(t, s.at, &tls.Config{})
		return err == nil && !now.PeerCertificates[0].Equal(first.PeerCertificates[0])
	})
	if _, err := s.client(t, "root", "").Discovery().ServerVersion(); err != nil {
		t.Errorf("the administrators' kubeconfig does not verify the new certificate: %v", err)
	}
}

// eventually polls a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it does not come to pass that %s", what)
		}
	}
}

func TestCipherSuites(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Serving.CipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
	o.Serving.DisableHTTP2Serving = true // HTTP/2 requires another cipher
	o.Serving.ServerCert.CertDirectory = filepath.Join(t.TempDir(), "certs")
	s := operate(t, t.TempDir(), o)
	got, err := shake(t, s.at, &tls.Config{MaxVersion: tls.VersionTLS12})
	if err != nil || got.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 {
		t.Errorf("cipher suite %s: %v", tls.CipherSuiteName(got.CipherSuite), err)
	}
	if _, err := shake(t, s.at, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}); err == nil {
		t.Error("another cipher suite is used")
	}
	ca := must(os.ReadFile(filepath.Join(o.Serving.ServerCert.CertDirectory, "apiserver-ca.crt")))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	if _, err := got.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: "127.0.0.1"}); err != nil {
		t.Errorf("the certificate in --cert-dir: %v", err)
	}
}

// Errors in the options are one line with the flag, before anything is created.
func TestOperationRefused(t *testing.T) {
	t.Parallel()
	files := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(files, name)
		write(t, path, []byte(text))
		return path
	}
	good, goodKey, _ := issued(t, files, "localhost", nil)
	missing, broken := filepath.Join(files, "missing"), file("broken", "{")
	policy := file("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	for name, c := range map[string]struct {
		set  func(*server.Operation)
		want string
	}{
		"certificate without key": {func(o *server.Operation) { o.Serving.ServerCert.CertKey.CertFile = good }, "--tls-private-key-file"},
		"missing certificate":     {func(o *server.Operation) { setPair(o, missing, goodKey) }, "--tls-cert-file"},
		"missing key":             {func(o *server.Operation) { setPair(o, good, missing) }, "--tls-private-key-file"},
		"broken certificate":      {func(o *server.Operation) { setPair(o, broken, goodKey) }, "--tls-"},
		"unknown version of TLS":  {func(o *server.Operation) { o.Serving.MinTLSVersion = "9" }, "--tls-"},
		"unknown cipher":          {func(o *server.Operation) { o.Serving.CipherSuites = []string{"rot13"} }, "--tls-"},
		"too few ciphers": {func(o *server.Operation) {
			o.Serving.CipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
		}, "--disable-http2-serving"},
		"missing certificate of SNI": {func(o *server.Operation) {
			o.Serving.SNICertKeys = []cliflag.NamedCertKey{{CertFile: missing, KeyFile: goodKey}}
		}, "--tls-sni-cert-key"},
		"audit without policy": {func(o *server.Operation) { o.Audit.LogOptions.Path = missing }, "--audit-policy-file"},
		"audit to nowhere":     {func(o *server.Operation) { o.Audit.PolicyFile = policy }, "--audit-log-path"},
		"broken audit policy":  {func(o *server.Operation) { o.Audit.PolicyFile, o.Audit.LogOptions.Path = broken, "-" }, "--audit-policy-file"},
		"unknown audit mode": {func(o *server.Operation) {
			o.Audit.LogOptions.Path, o.Audit.LogOptions.BatchOptions.Mode = "-", "never"
		}, "--audit-"},
		"missing audit webhook":   {func(o *server.Operation) { o.Audit.PolicyFile, o.Audit.WebhookOptions.ConfigFile = policy, missing }, "--audit-webhook-config-file"},
		"missing tracing file":    {func(o *server.Operation) { o.Tracing.ConfigFile = missing }, "--tracing-config-file"},
		"broken tracing file":     {func(o *server.Operation) { o.Tracing.ConfigFile = broken }, "--tracing-config-file"},
		"reload of nothing":       {func(o *server.Operation) { o.Encryption.Reload = true }, "--encryption-provider-config"},
		"missing encryption file": {func(o *server.Operation) { o.Encryption.ConfigFile = missing }, "--encryption-provider-config"},
		"broken encryption file":  {func(o *server.Operation) { o.Encryption.ConfigFile = broken }, "--encryption-provider-config"},
		"goaway chance":           {func(o *server.Operation) { o.Requests.GoawayChance = 0.5 }, "--goaway-chance"},
		"CORS":                    {func(o *server.Operation) { o.Requests.CorsAllowedOriginList = []string{"example.com"} }, "--cors-allowed-origins"},
		"HSTS":                    {func(o *server.Operation) { o.Requests.HSTSDirectives = []string{"forever"} }, "--strict-transport-security-directives"},
		"event TTL":               {func(o *server.Operation) { o.EventTTL = time.Millisecond }, "--event-ttl"},
	} {
		o := server.DefaultOperation()
		c.set(&o)
		dir := filepath.Join(t.TempDir(), "new")
		s, err := server.New(t.Context(), server.Config{Dir: dir, NoSync: true, Operation: o})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: something was started", name)
		}
	}
}

func setPair(o *server.Operation, cert, key string) {
	o.Serving.ServerCert.CertKey.CertFile, o.Serving.ServerCert.CertKey.KeyFile = cert, key
}
