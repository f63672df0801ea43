// Package peers connects the servers on one etcd with each other. It hides how they find and
// recognize each other: all have one certificate, whose key is in etcd. A server presents it at
// its usual listener to clients that ask for the name of peers, and with it recognizes requests
// of peers. No other client can reach the handlers of peers.
package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/storage/store"
)

const (
	// name is the name in the certificate. It is no host.
	name = "peer.kcp.invalid"
	// life is the life of the certificate. To replace the certificate, its key in etcd is
	// deleted.
	life = 10 * 365 * 24 * time.Hour
	// topic is where servers announce their addresses.
	topic = "peers"
	// prefix begins the paths that servers serve each other.
	prefix = "/peers/"
	// fresh is how long the addresses of the others are remembered.
	fresh = time.Second
)

// A Peer is another server on the same etcd.
type Peer struct {
	// URL is the URL of the server, with the path /.
	URL *url.URL
	// TLS configures connections to it.
	TLS *tls.Config
}

// At returns the URL of something that the extensions of the server serve peers.
func (p Peer) At(path string) *url.URL { return p.URL.JoinPath(prefix, path) }

// Peers are the servers on one etcd, as one of them sees them.
type Peers struct {
	store    *store.Store
	address  string // of this server
	serve    map[string]http.Handler
	pair     tls.Certificate
	key, pem []byte

	mu    sync.Mutex
	known []string  // addresses of others; guarded by mu
	read  time.Time // when they were read; guarded by mu
}

// New returns the peers of a server with an address, which serves them what is below
// the names of serve.
func New(ctx context.Context, s *store.Store, address string, serve map[string]http.Handler) (*Peers, error) {
	text, err := s.SharedValue(ctx, "peer-certificate", func() ([]byte, error) {
		cert, key, err := credentials.Issue(&x509.Certificate{
			Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(life), BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, nil)
		return append(cert, key...), err
	})
	if err != nil {
		return nil, err
	}
	p := &Peers{store: s, address: address, serve: serve}
	if p.pair, err = tls.X509KeyPair(text, text); err != nil {
		return nil, fmt.Errorf("certificate of the servers on this etcd: %w", err)
	}
	from := bytes.Index(text, []byte("-----BEGIN PRIVATE KEY"))
	p.pem, p.key = text[:from], text[from:]
	return p, nil
}

// Certificate returns the certificate that the listener presents to peers.
func (p *Peers) Certificate() (dynamiccertificates.SNICertKeyContentProvider, error) {
	return dynamiccertificates.NewStaticSNICertKeyContent("peers", p.pem, p.key, name)
}

// Within serves requests of peers, and passes all others to next.
func (p *Peers) Within(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		rest, below := strings.CutPrefix(req.URL.Path, prefix)
		of, rest, _ := strings.Cut(rest, "/")
		h := p.serve[of]
		if !below || h == nil || !p.recognizes(req) {
			next.ServeHTTP(w, req)
			return
		}
		inside := req.Clone(req.Context())
		inside.URL.Path, inside.URL.RawPath = "/"+rest, ""
		h.ServeHTTP(w, inside)
	})
}

// recognizes reports whether a peer sends a request: the handshake has shown that the sender has
// the key of the certificate.
func (p *Peers) recognizes(req *http.Request) bool {
	return req.TLS != nil && len(req.TLS.PeerCertificates) > 0 && bytes.Equal(req.TLS.PeerCertificates[0].Raw, p.pair.Leaf.Raw)
}

// Announce tells the others the address of this server, until ctx ends.
func (p *Peers) Announce(ctx context.Context) {
	if p.address == "" {
		return // there is no listener to connect to
	}
	p.store.Election().Announce(ctx, topic, p.address)
}

// Others returns the other servers that have announced their addresses.
func (p *Peers) Others(ctx context.Context) ([]Peer, error) {
	addresses, err := p.addresses(ctx)
	if err != nil {
		return nil, err
	}
	var all []Peer
	for _, a := range addresses {
		all = append(all, Peer{URL: &url.URL{Scheme: "https", Host: a, Path: "/"}, TLS: p.config()})
	}
	return all, nil
}

func (p *Peers) addresses(ctx context.Context) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.read) < fresh {
		return p.known, nil
	}
	all, err := p.store.Election().Announced(ctx, topic)
	if err != nil {
		return nil, err
	}
	slices.Sort(all)
	p.known = slices.DeleteFunc(slices.Compact(all), func(a string) bool { return a == p.address })
	p.read = time.Now()
	return p.known, nil
}

// config configures connections to other servers.
func (p *Peers) config() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(p.pair.Leaf)
	return &tls.Config{ServerName: name, RootCAs: roots, MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p.pair, nil }}
}

// Address returns the address at which others reach a listener. chosen is the address that the
// operator chose. It is empty if there is none.
func Address(chosen string, at net.Addr) (string, error) {
	if chosen != "" {
		if host, port, err := net.SplitHostPort(chosen); err != nil || host == "" || port == "" {
			return "", fmt.Errorf("the address %q for other servers is not host:port; correct --peer-advertise-ip and --peer-advertise-port", chosen)
		}
		return chosen, nil
	}
	own, ok := at.(*net.TCPAddr)
	if !ok || own.Port == 0 {
		return "", nil
	}
	host := own.IP
	if len(host) == 0 || host.IsUnspecified() {
		var err error
		if host, err = utilnet.ChooseHostInterface(); err != nil {
			return "", nil //nolint:nilerr // a machine without a network has no peers
		}
	}
	return (&net.TCPAddr{IP: host, Port: own.Port}).String(), nil
}
