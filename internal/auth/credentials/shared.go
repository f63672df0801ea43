package credentials

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"k8s.io/client-go/util/keyutil"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/storage/store"
)

// Servers on one etcd are equal: a token or a certificate authority from one of them must
// be valid at all. So the keys are in etcd, below a prefix that no request can read, and
// each server reads them. Read access to etcd reveals every secret anyhow.

// SharedSigningKey returns the key that signs the service account tokens of all servers on
// this etcd. The first server stores the key in the file, or a new one if there is no file.
// A file with another key is an error.
func SharedSigningKey(ctx context.Context, s *store.Store, file string) (crypto.Signer, error) {
	own, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key of service account tokens: %w", err)
	}
	data, err := s.SharedValue(ctx, "service-account-key", func() ([]byte, error) {
		if own != nil {
			return own, nil
		}
		made, err := ServiceAccountKey("")
		if err != nil {
			return nil, err
		}
		return keyutil.MarshalPrivateKeyToPEM(made)
	})
	if err != nil {
		return nil, err
	}
	if own != nil && !bytes.Equal(own, data) {
		return nil, fmt.Errorf("%s is not the key of the other servers on this etcd, which would refuse each other's tokens; remove the file to use theirs", file)
	}
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("key of service account tokens of the servers on this etcd: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("key of service account tokens of the servers on this etcd: a %T cannot sign", key)
	}
	return signer, nil
}

// AgreeOnSigner returns an error if the other servers on this etcd sign service account
// tokens with another key. It accepts their key if this server can verify with it, so
// that a key can be rotated.
func AgreeOnSigner(ctx context.Context, s *store.Store, o authn.ServiceAccountOptions) error {
	if !s.Shared() {
		return nil
	}
	own, err := fingerprint(o.Key.Public())
	if err != nil {
		return err
	}
	known := [][]byte{own}
	for _, key := range o.VerifyKeys {
		print, err := fingerprint(key)
		if err != nil {
			return err
		}
		known = append(known, print)
	}
	return s.UpdateSharedValue(ctx, "service-account-signer", func(theirs []byte) ([]byte, error) {
		if theirs != nil && !slices.ContainsFunc(known, func(print []byte) bool { return bytes.Equal(print, theirs) }) {
			return nil, errors.New("the servers on this etcd sign tokens of service accounts with another key, and would refuse those of this one: give it their --service-account-signing-key-file; to change the key, name theirs with --service-account-key-file")
		}
		return own, nil
	})
}

// fingerprint identifies a public key.
func fingerprint(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("key of service account tokens: %w", err)
	}
	sum := sha256.Sum256(der)
	return []byte(hex.EncodeToString(sum[:])), nil
}
