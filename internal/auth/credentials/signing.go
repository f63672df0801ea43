package credentials

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/client-go/util/keyutil"
)

// ServiceAccountKey returns the key that signs service account tokens, from the PEM file at
// path. If the file is missing, it generates an elliptic curve key (P-256) and writes the
// file. An RSA key of the same strength would dominate the time of the first start. RSA
// keys in the file work too. With an empty path the key, and so every token, lives as long
// as the process.
func ServiceAccountKey(path string) (crypto.Signer, error) {
	if path != "" {
		if key, err := readKey(path, newKey); !errors.Is(err, fs.ErrNotExist) {
			return key, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil || path == "" {
		return key, err
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	switch err := createFile(path, data); {
	case errors.Is(err, fs.ErrExist):
		return readKey(path, newKey) // another process with the same directory was first
	case err != nil:
		return nil, fmt.Errorf("keep the key of service account tokens: %w", err)
	}
	return key, nil
}

// SigningKey returns the private key in the PEM file at path. A missing file is an error.
func SigningKey(path string) (crypto.Signer, error) {
	key, err := readKey(path, "use a PEM file with an RSA or ECDSA private key")
	if err != nil {
		return nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	return key, nil
}

// newKey is the hint for a key that the server generated.
const newKey = "remove the file to generate a new key, which invalidates all tokens"

// readKey reads a private key. Errors end with hint if the key is invalid.
func readKey(path, hint string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of service account tokens: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("read the key of service account tokens in %s: %w; %s", path, err, hint)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the key of service account tokens in %s is a %T, which cannot sign; use an RSA or ECDSA private key", path, key)
	}
	return signer, nil
}
