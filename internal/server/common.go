package server

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/util/keyutil"

	"github.com/unforked/kcp/internal/auth"
)

// Processes that serve the same etcd are equal: a token, and a certificate authority,
// that one gave to a client must do for the others. So these are in etcd, in the range
// that is never served, where each process finds them at its start. Whoever can read
// etcd could read every secret anyhow.

// commonAuthority returns the authority of the serving certificates of all processes.
func (s *Server) commonAuthority(ctx context.Context) (tls.Certificate, error) {
	pair, err := s.store.Common(ctx, "serving-authority", func() ([]byte, error) {
		cert, key, err := makeAuthority()
		return append(cert, key...), err
	})
	if err != nil {
		return tls.Certificate{}, err
	}
	authority, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		return authority, fmt.Errorf("authority of the certificates of the servers on this etcd: %w", err)
	}
	return authority, nil
}

// commonSigningKey returns the key of service account tokens of all processes. It begins
// as that in the file, if there is one.
func (s *Server) commonSigningKey(ctx context.Context, file string) (crypto.Signer, error) {
	own, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key of service account tokens: %w", err)
	}
	data, err := s.store.Common(ctx, "service-account-key", func() ([]byte, error) {
		if own != nil {
			return own, nil
		}
		made, err := auth.ServiceAccountKey("")
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

// agreeOnSigner refuses a key for the tokens of service accounts that is another one than
// that of the servers which serve the same etcd, unless theirs is known here: that is how
// a key is changed.
func (s *Server) agreeOnSigner(ctx context.Context, o auth.ServiceAccountOptions) error {
	if !s.store.Several() {
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
	return s.store.Agree(ctx, "service-account-signer", func(theirs []byte) ([]byte, error) {
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

// commonAdmins returns the tokens of the administrators of all processes, nil if there
// is but one process.
func (s *Server) commonAdmins(ctx context.Context) (*auth.AdminTokens, error) {
	if !s.store.Several() {
		return nil, nil
	}
	data, err := s.store.Common(ctx, "admin-tokens", func() ([]byte, error) {
		return json.Marshal(auth.AdminTokens{Kcp: rand.Text(), Shard: rand.Text()})
	})
	if err != nil {
		return nil, err
	}
	tokens := &auth.AdminTokens{}
	if err := json.Unmarshal(data, tokens); err != nil || tokens.Kcp == "" || tokens.Shard == "" {
		return nil, errors.Join(errors.New("the tokens of the administrators of the servers on this etcd are damaged"), err)
	}
	return tokens, nil
}

// etcdReady tells whether etcd answers. Without it no request can be served, but ending
// the process would not help.
func (s *Server) etcdReady(req *http.Request) error { return s.store.Reachable(req.Context()) }

func (s *Server) signingKeyFile() string { return filepath.Join(s.config.Dir, "sa.key") }
