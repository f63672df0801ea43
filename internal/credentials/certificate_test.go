package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The server renews its own certificate while it runs, long before the certificate expires.
// Clients that trust its authority accept the new one.
func TestOwnCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o, err := NewCertificate(dir, []string{"localhost", "kcp.example.com"}, LoadAuthority)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(o.CA())
		told := make(listener, 10)
		o.AddListener(told)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { o.Run(ctx, 1); close(ended) }()
		first := leaf(t, o)
		for month := range 20 {
			<-time.After(30 * 24 * time.Hour) // fake time
			synctest.Wait()
			now := leaf(t, o)
			for _, host := range []string{"localhost", "kcp.example.com"} {
				if _, err := now.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: time.Now().Add(renewBefore - 2*renewCheck)}); err != nil {
					t.Errorf("after %d months: %v", month+1, err)
				}
			}
		}
		if leaf(t, o).Equal(first) || len(told) != 1 {
			t.Errorf("it was renewed %d times in twenty months, want once", len(told))
		}
		cancel()
		<-ended
		kept, err := NewCertificate(dir, []string{"localhost"}, LoadAuthority)
		if err != nil || !leaf(t, kept).Equal(leaf(t, o)) {
			t.Errorf("the next start has another certificate (%v)", err)
		}
	})
}

type listener chan struct{}

func (l listener) Enqueue() { l <- struct{}{} }

func leaf(t *testing.T, o *Certificate) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(o.CurrentCertKeyContent())
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestOwnCertificateIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, err := NewCertificate(dir, []string{"localhost"}, LoadAuthority)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := o.files()
	if err := os.WriteFile(keyFile, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := NewCertificate(dir, []string{"localhost"}, LoadAuthority)
	if err != nil || leaf(t, other).Equal(leaf(t, o)) || string(other.CA()) != string(o.CA()) {
		t.Errorf("a damaged key was not replaced under the same authority: %v", err)
	}
	wider, err := NewCertificate(dir, []string{"localhost", "10.0.0.1"}, LoadAuthority)
	if err != nil || leaf(t, wider).VerifyHostname("10.0.0.1") != nil {
		t.Errorf("a new host is not in the certificate: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "apiserver-ca.key"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewCertificate(dir, nil, LoadAuthority); err == nil || !strings.Contains(err.Error(), "remove ") {
		t.Errorf("a damaged authority: %v", err)
	}
	if text, err := os.ReadFile(certFile); err != nil || strings.Count(string(text), "BEGIN CERTIFICATE") != 2 {
		t.Errorf("%s does not verify itself: %v\n%s", certFile, err, text)
	}
}

func TestTopOfChain(t *testing.T) {
	t.Parallel()
	o, err := NewCertificate(t.TempDir(), []string{"localhost"}, LoadAuthority)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := o.CurrentCertKeyContent()
	alone := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf(t, o).Raw})
	for name, c := range map[string]struct{ chain, want []byte }{
		"with its authority":    {cert, o.CA()},
		"without its authority": {alone, alone},
	} {
		top, err := topOf(c.chain)
		if err != nil || string(top) != string(c.want) {
			t.Errorf("%s: %v\n%s", name, err, top)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(top)
		if _, err := leaf(t, o).Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
			t.Errorf("%s: clients cannot verify with that: %v", name, err)
		}
	}
	if _, err := topOf([]byte("nothing")); err == nil {
		t.Error("no certificate has no top")
	}
}
