package dial

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
)

// A certificate authority with a huge key would take a processor for hours, once a server shows a certificate in
// its name.
func TestHugeKeysOfAuthorities(t *testing.T) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	for bits, fits := range map[uint]bool{4096: true, 8192: true, 8193: false, 100_000: false} {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		der, err := x509.CreateCertificate(rand.Reader, template, template, &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 1<<31 - 1}, own)
		if err != nil {
			t.Fatal(err)
		}
		_, err = newDialer(t, Options{}).For("tenant", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		if fits != (err == nil) || err != nil && !strings.Contains(err.Error(), "the limit is 8192") {
			t.Errorf("%d bits: %v", bits, err)
		}
	}
}
