package credentials

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/unforked/kcp/internal/storage/store"
)

const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityRenew = 2 * certificateLife // before its expiry
	// introduction is how long a new authority is trusted before it signs. Clients learn of it
	// meanwhile.
	introduction = 30 * 24 * time.Hour
	backdated    = time.Hour // of all certificates, for clocks that are behind
)

// Authorities are the certificate authorities of one purpose. Certificates of all are trusted;
// the first one signs.
type Authorities []authority

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer // nil if it is only trusted
}

// Signer returns the authority that signs.
func (a Authorities) Signer() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{a[0].cert.Raw}, PrivateKey: a[0].key, Leaf: a[0].cert}
}

// Bundle returns the certificates of all authorities, in PEM.
func (a Authorities) Bundle() []byte {
	var text []byte
	for _, one := range a {
		text = append(text, encodeCertificate(one.cert.Raw)...)
	}
	return text
}

// Keys returns the private keys, in PEM.
func (a Authorities) Keys() ([]byte, error) {
	var text []byte
	for _, one := range a {
		if one.key == nil {
			continue
		}
		key, err := encodeKey(one.key)
		if err != nil {
			return nil, err
		}
		text = append(text, key...)
	}
	return text, nil
}

// parseAuthorities reads authorities from certificates and keys in PEM, in any order of the keys.
// Both texts may be the same.
func parseAuthorities(certs, keys []byte) (Authorities, error) {
	chain, err := parseChain(certs)
	if err != nil {
		return nil, err
	}
	signers, err := parseKeys(keys)
	if err != nil {
		return nil, err
	}
	all := make(Authorities, len(chain))
	for i, c := range chain {
		all[i].cert = c
		for _, key := range signers {
			if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); ok && public.Equal(c.PublicKey) {
				all[i].key = key
			}
		}
	}
	if all[0].key == nil {
		return nil, errors.New("the key of the first certificate is missing")
	}
	return all, nil
}

func parseKeys(text []byte) ([]crypto.Signer, error) {
	var all []crypto.Signer
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all, nil
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		key, err := keyutil.ParsePrivateKeyPEM(pem.EncodeToMemory(block))
		if err != nil {
			return nil, err
		}
		if signer, ok := key.(crypto.Signer); ok {
			all = append(all, signer)
		}
	}
}

// at returns the authorities as they must be at a time. There is a new one long before the signer
// expires. It signs after its introduction, and the old one is trusted until it expires.
func (a Authorities) at(now time.Time) (Authorities, error) {
	var next Authorities
	for _, one := range a {
		if now.Before(one.cert.NotAfter) {
			next = append(next, one)
		}
	}
	if len(next) == 0 || next[0].key == nil {
		made, err := makeAuthority()
		return append(Authorities{made}, next...), err
	}
	signer, newest := next[0], next[len(next)-1]
	left := signer.cert.NotAfter.Sub(now)
	if !newest.follows(signer) && left <= authorityRenew {
		made, err := makeAuthority()
		if err != nil {
			return nil, err
		}
		next, newest = append(next, made), made
	}
	introduced := !now.Before(newest.cert.NotBefore.Add(backdated + introduction))
	if newest.follows(signer) && (introduced || left <= 2*renewBefore) {
		next = append(Authorities{newest}, next[:len(next)-1]...)
	}
	return next, nil
}

// follows reports whether an authority is there to sign after another one.
func (a authority) follows(b authority) bool {
	return a.key != nil && a.cert.NotBefore.After(b.cert.NotBefore)
}

func makeAuthority() (authority, error) {
	cert, key, err := Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kcp-ca"}, NotAfter: time.Now().Add(authorityLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}, nil)
	if err != nil {
		return authority{}, err
	}
	all, err := parseAuthorities(cert, key)
	if err != nil {
		return authority{}, err
	}
	return all[0], nil
}

// LoadAuthorities returns the authorities in the files. It makes a new one if there is none or
// the present one expires soon.
func LoadAuthorities(_ context.Context, certFile, keyFile string) (Authorities, error) {
	cert, key, err := readPair(certFile, keyFile)
	var have Authorities
	if err == nil {
		have, err = parseAuthorities(cert, key)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the authority of the serving certificate: %w; remove %s and %s so that the server makes a new one", err, certFile, keyFile)
	}
	next, err := have.at(time.Now())
	if err != nil {
		return nil, err
	}
	nextKeys, err := next.Keys()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(next.Bundle(), have.Bundle()) {
		err = keepPair(certFile, next.Bundle(), keyFile, nextKeys)
	}
	return next, err
}

func readPair(certFile, keyFile string) (cert, key []byte, err error) {
	if cert, err = os.ReadFile(certFile); err == nil {
		key, err = os.ReadFile(keyFile)
	}
	return cert, key, err
}

// Authorities in etcd, which all servers on it share.
const (
	// OfServing sign the serving certificates of all servers.
	OfServing = "serving-authority"
	// OfClients sign the certificates of users of workspaces.
	OfClients = "client-authority"
)

// SharedAuthorities returns the authorities of that name. It makes a new one if there is none or
// the present one expires soon.
func SharedAuthorities(ctx context.Context, s *store.Store, name string) (Authorities, error) {
	var all Authorities
	err := s.UpdateSharedValue(ctx, name, func(common []byte) (_ []byte, err error) {
		var have Authorities
		if common != nil {
			if have, err = parseAuthorities(common, common); err != nil {
				return nil, err
			}
		}
		if all, err = have.at(time.Now()); err != nil || bytes.Equal(all.Bundle(), have.Bundle()) {
			return common, err
		}
		private, err := all.Keys()
		return append(all.Bundle(), private...), err
	})
	if err != nil {
		return nil, fmt.Errorf("%s of the servers on this etcd: %w", name, err)
	}
	return all, nil
}
