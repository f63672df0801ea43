package credentials

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/util/keyutil"

	"github.com/unforked/kcp/internal/auth/authtest"
)

func TestSigningKeyFilesThatAreWrong(t *testing.T) {
	t.Parallel()
	key, err := ServiceAccountKey("")
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	broken := authtest.WriteFile(t, "broken.pem", []byte("no key"))
	public := authtest.WriteFile(t, "public.pem", pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der}))
	for _, file := range []string{"/nope", broken, public} {
		if _, err := SigningKey(file); err == nil || !strings.Contains(err.Error(), "--service-account-signing-key-file") || !strings.Contains(err.Error(), file) {
			t.Errorf("%v", err)
		}
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
