package storetest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

// Plain is the provider of an EncryptionConfiguration that does not encrypt.
const Plain = "identity: {}"

// Keys returns a provider of an EncryptionConfiguration with keys of these names.
func Keys(provider string, names ...string) string {
	text := provider + ": {keys: ["
	for _, n := range names {
		key := sha256.Sum256([]byte(n))
		text += fmt.Sprintf("{name: %s, secret: %s},", n, base64.StdEncoding.EncodeToString(key[:]))
	}
	return text + "]}"
}

// AESGCM returns an AES-GCM provider with keys of these names.
func AESGCM(names ...string) string { return Keys("aesgcm", names...) }

// Encrypting returns the transformers of a configuration that encrypts all resources with
// these providers.
func Encrypting(t testing.TB, providers ...string) value.ResourceTransformers {
	t.Helper()
	return EncryptingOnly(t, "*.*", providers...)
}

// EncryptingOnly is Encrypting for one resource.
func EncryptingOnly(t testing.TB, resource string, providers ...string) value.ResourceTransformers {
	t.Helper()
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['" + resource + "']\n  providers:\n"
	for _, p := range providers {
		text += "  - " + p + "\n"
	}
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := encryptionconfig.LoadEncryptionConfig(t.Context(), file, false, "test")
	if err != nil {
		t.Fatal(err)
	}
	return encryptionconfig.StaticTransformers(loaded.Transformers)
}
