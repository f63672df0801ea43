package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The server renews its own certificate while it runs, long before the certificate expires.
// Clients that trust its authority accept the new one. In ten years the authority is replaced, too:
// clients that read the trusted authorities once a month accept every certificate.
func TestOwnCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o, err := NewCertificate(t.Context(), dir, []string{"localhost", "kcp.example.com"}, LoadAuthorities)
		if err != nil {
			t.Fatal(err)
		}
		told := make(listener, 100)
		o.AddListener(told)
		first, bundles := leaf(t, o), map[string]bool{}
		for month := range 12 * 21 {
			trusted := o.CA()
			bundles[string(trusted)] = true
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(trusted)
			for range 4 {
				<-time.After(180 * time.Hour) // fake time
				if err := o.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				now := leaf(t, o)
				for _, host := range o.hosts {
					if _, err := now.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: time.Now().Add(renewBefore - 190*time.Hour)}); err != nil {
						t.Errorf("after %d months: %v", month+1, err)
					}
				}
			}
			if month == 19 && (leaf(t, o).Equal(first) || len(told) != 1) {
				t.Errorf("it was renewed %d times in twenty months, want once", len(told))
			}
		}
		// One authority, both, both with the new one first, and the new one; twice in 21 years.
		if len(bundles) != 7 {
			t.Errorf("%d sets of authorities were trusted, want 7", len(bundles))
		}
		kept, err := NewCertificate(t.Context(), dir, []string{"localhost"}, LoadAuthorities)
		if err != nil || !leaf(t, kept).Equal(leaf(t, o)) {
			t.Errorf("the next start has another certificate (%v)", err)
		}
	})
}

// An authority that an operator appends is trusted at once, and signs after its introduction. Without
// files there is a new one at once.
func TestAuthoritiesOfOperators(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "apiserver-ca.crt"), filepath.Join(dir, "apiserver-ca.key")
	synctest.Test(t, func(t *testing.T) {
		o, err := NewCertificate(t.Context(), dir, []string{"localhost"}, LoadAuthorities)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		refreshed := func() (authority *x509.Certificate, trusted int) {
			t.Helper()
			if err := o.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			all, err := parseChain(o.CA())
			if err != nil || leaf(t, o).CheckSignatureFrom(all[0]) != nil {
				t.Fatalf("the first authority has not signed the certificate (%v)", err)
			}
			return all[0], len(all)
		}
		first, _ := refreshed()
		added, err := makeAuthority()
		if err != nil {
			t.Fatal(err)
		}
		both := append(slices.Clone(o.authorities), added)
		key, err := both.Keys()
		if err == nil {
			err = keepPair(certFile, both.Bundle(), keyFile, key)
		}
		if err != nil {
			t.Fatal(err)
		}
		if now, trusted := refreshed(); !now.Equal(first) || trusted != 2 {
			t.Errorf("an appended authority signs at once, or is not one of %d that are trusted", trusted)
		}
		<-time.After(introduction)
		if now, trusted := refreshed(); !now.Equal(added.cert) || trusted != 2 {
			t.Errorf("after its introduction, the authority does not sign, or the old one is not one of %d that are trusted", trusted)
		}
		for _, file := range []string{certFile, keyFile} {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		if now, trusted := refreshed(); now.Equal(added.cert) || now.Equal(first) || trusted != 1 {
			t.Errorf("without files, there is no new authority among %d", trusted)
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
	o, err := NewCertificate(t.Context(), dir, []string{"localhost"}, LoadAuthorities)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := o.files()
	if err := os.WriteFile(keyFile, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := NewCertificate(t.Context(), dir, []string{"localhost"}, LoadAuthorities)
	if err != nil || leaf(t, other).Equal(leaf(t, o)) || string(other.CA()) != string(o.CA()) {
		t.Errorf("a damaged key was not replaced under the same authority: %v", err)
	}
	wider, err := NewCertificate(t.Context(), dir, []string{"localhost", "10.0.0.1"}, LoadAuthorities)
	if err != nil || leaf(t, wider).VerifyHostname("10.0.0.1") != nil {
		t.Errorf("a new host is not in the certificate: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "apiserver-ca.key"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewCertificate(t.Context(), dir, nil, LoadAuthorities); err == nil || !strings.Contains(err.Error(), "remove ") {
		t.Errorf("a damaged authority: %v", err)
	}
	if text, err := os.ReadFile(certFile); err != nil || strings.Count(string(text), "BEGIN CERTIFICATE") != 2 {
		t.Errorf("%s does not verify itself: %v\n%s", certFile, err, text)
	}
}

func TestVerifiersOfChain(t *testing.T) {
	t.Parallel()
	o, err := NewCertificate(t.Context(), t.TempDir(), []string{"localhost"}, LoadAuthorities)
	if err != nil {
		t.Fatal(err)
	}
	further, err := makeAuthority()
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := o.CurrentCertKeyContent()
	alone := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf(t, o).Raw})
	next := encodeCertificate(further.cert.Raw)
	for name, c := range map[string]struct{ chain, want []byte }{
		"with its authority":                {cert, o.CA()},
		"without its authority":             {alone, alone},
		"with a further authority":          {slices.Concat(cert, next), slices.Concat(o.CA(), next)},
		"with a further authority before":   {slices.Concat(alone, next, o.CA()), slices.Concat(o.CA(), next)},
		"with the same authority once more": {slices.Concat(cert, o.CA()), o.CA()},
	} {
		trusted, err := verifiersOf(c.chain)
		if err != nil || string(trusted) != string(c.want) {
			t.Errorf("%s: %v\n%s", name, err, trusted)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(trusted)
		if _, err := leaf(t, o).Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
			t.Errorf("%s: clients cannot verify with that: %v", name, err)
		}
	}
	if _, err := verifiersOf([]byte("nothing")); err == nil {
		t.Error("without certificates, there are verifiers")
	}
}
