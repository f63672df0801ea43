package external

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// TestSecured connects with valid credentials. Without the right authority, certificate or
// password, the error is one line with the flags to check.
func TestSecured(t *testing.T) {
	dir := t.TempDir()
	ca, server, client, stranger := authority(t, dir, "ca"), "server", "client", authority(t, dir, "stranger")
	ca.issue(server)
	ca.issue(client)
	stranger.issue("impostor")
	file := func(name string) string { return filepath.Join(dir, name) }
	members := etcdtest.Start(t, etcdtest.Options{CA: file("ca.crt"), Cert: file("server.crt"), Key: file("server.key")})
	good := Config{Servers: members.Servers(), CAFile: file("ca.crt"), CertFile: file("client.crt"), KeyFile: file("client.key")}
	for name, spoil := range map[string]func(*Config){
		"another authority":   func(c *Config) { c.CAFile = file("stranger.crt") },
		"no certificate":      func(c *Config) { c.CertFile, c.KeyFile = "", "" },
		"another certificate": func(c *Config) { c.CertFile, c.KeyFile = file("impostor.crt"), file("impostor.key") },
	} {
		bad := good
		spoil(&bad)
		refusedBy(t, name, bad, "no secure connection", "--etcd-cafile", "--etcd-certfile")
	}
	admin := connected(t, good).Client
	for _, err := range []error{
		second(admin.UserAdd(t.Context(), "root", "secret")), second(admin.UserGrantRole(t.Context(), "root", "root")),
		second(admin.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	refusedBy(t, "wrong password", with(good, "root", "guessed"), "does not let the server in", "--etcd-username")
	refusedBy(t, "unknown user", with(good, "nobody", "secret"), "does not let the server in", "--etcd-username")
	connected(t, with(good, "root", "secret"))
}

func second[T any](_ T, err error) error { return err }

func with(c Config, user, password string) Config {
	c.Username, c.Password = user, password
	return c
}

func refusedBy(t *testing.T, name string, c Config, says ...string) {
	t.Helper()
	b, err := Connect(t.Context(), c)
	if err == nil {
		b.Close()
		t.Errorf("%s is accepted", name)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q does not say %q", name, err, text)
		}
	}
}

// An issuer issues certificates as files in dir.
type issuer struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func authority(t *testing.T, dir, name string) *issuer {
	t.Helper()
	i := &issuer{t: t, dir: dir}
	i.cert, i.key = i.make(name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return i
}

func (i *issuer) issue(name string) {
	i.t.Helper()
	i.make(name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (i *issuer) make(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := i.cert, i.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		i.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		i.t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(i.dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			i.t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return made, key
}
