package authn

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/bounds"
)

const (
	// clientCertificateLife is the longest and usual life of client certificates, as in
	// Kubernetes.
	clientCertificateLife = 365 * 24 * time.Hour
	// Backdated is how long before now certificates begin, for clients whose clocks are behind.
	Backdated = 5 * time.Minute
)

// ClientCertificates issues certificates for users of one logical cluster, and authenticates
// them. A certificate names its cluster. In other clusters, and in a later cluster of the same
// name, its user is anonymous.
type ClientCertificates struct {
	created func(cluster.Name) (time.Time, bool)

	mu        sync.Mutex
	trust     clientTrust
	listeners []dynamiccertificates.Listener
}

// clientTrust is the authority that signs, and the authorities that are trusted.
type clientTrust struct {
	signer tls.Certificate
	bundle []byte // PEM
	roots  *x509.CertPool
}

var _ dynamiccertificates.CAContentProvider = (*ClientCertificates)(nil)

// NewClientCertificates returns ClientCertificates. The caller calls SetAuthorities before any other
// method. created returns when a cluster was created, and whether it exists.
func NewClientCertificates(created func(cluster.Name) (time.Time, bool)) *ClientCertificates {
	return &ClientCertificates{created: created}
}

// SetAuthorities sets the authority that signs, and the PEM bundle of all that are trusted. It
// reports whether the bundle has changed.
func (i *ClientCertificates) SetAuthorities(signer tls.Certificate, trusted []byte) (changed bool) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	i.mu.Lock()
	changed = !bytes.Equal(i.trust.bundle, trusted)
	i.trust = clientTrust{signer, trusted, roots}
	listeners := i.listeners
	i.mu.Unlock()
	if changed {
		for _, l := range listeners {
			l.Enqueue()
		}
	}
	return changed
}

func (i *ClientCertificates) trusts() clientTrust {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.trust
}

// Name implements [dynamiccertificates.CAContentProvider].
func (i *ClientCertificates) Name() string { return "workspace-clients" }

// CurrentCABundleContent implements [dynamiccertificates.CAContentProvider].
func (i *ClientCertificates) CurrentCABundleContent() []byte { return i.trusts().bundle }

// VerifyOptions implements [dynamiccertificates.CAContentProvider].
func (i *ClientCertificates) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: i.trusts().roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
}

// AddListener implements [dynamiccertificates.CAContentProvider].
func (i *ClientCertificates) AddListener(l dynamiccertificates.Listener) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listeners = append(i.listeners, l)
}

// encodeCertificate returns a certificate in PEM.
func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// clusterURI returns the URI that names a cluster in a certificate. The time of creation
// distinguishes the cluster from earlier ones of the same name.
func clusterURI(c cluster.Name, created time.Time) *url.URL {
	return &url.URL{Scheme: "kcp", Opaque: fmt.Sprintf("cluster:%s:%d", c, created.Unix())}
}

// AgentPrefix begins the names of the agents of extensions. Only certificates of
// [ClientCertificates.IssueAgent] have such names.
const AgentPrefix = "system:kcp:agent:"

// Issue returns a certificate, in PEM, for the user and the groups that a request in PEM names.
// It ignores everything else in the request but the public key. The certificate is valid for life;
// zero, a negative life and one of more than 365 days mean 365 days. It never outlives its authority.
func (i *ClientCertificates) Issue(c cluster.Name, request []byte, life time.Duration) ([]byte, error) {
	r, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	for _, name := range append([]string{r.Subject.CommonName}, r.Subject.Organization...) {
		if name == "" || strings.HasPrefix(name, auth.ReservedPrefix) {
			return nil, fmt.Errorf("the request names the user or group %q: names must not be empty, and those that begin with %q are reserved", name, auth.ReservedPrefix)
		}
	}
	return i.sign(c, r, pkix.Name{CommonName: r.Subject.CommonName, Organization: r.Subject.Organization}, life)
}

// IssueAgent returns a certificate, in PEM, for an agent of an extension, whose name follows
// [AgentPrefix]. It ignores everything in the request, in PEM, but the public key. RBAC grants
// agents nothing: they may use what the extension lets them use in the cluster. life is the same as
// for Issue. It is an error if the request is malformed or not signed by its key, or if c is a system
// cluster or does not exist.
func (i *ClientCertificates) IssueAgent(c cluster.Name, name string, request []byte, life time.Duration) ([]byte, error) {
	r, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	return i.sign(c, r, pkix.Name{CommonName: AgentPrefix + name}, life)
}

// parseRequest returns the certificate request in PEM, which its key has signed.
func parseRequest(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil {
		return nil, errors.New("the request is not in PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := bounds.PublicKey(r.PublicKey, bounds.Modulus); err != nil {
		return nil, err
	}
	return r, r.CheckSignature()
}

func (i *ClientCertificates) sign(c cluster.Name, r *x509.CertificateRequest, subject pkix.Name, life time.Duration) ([]byte, error) {
	created, ok := i.created(c)
	if !ok || c.System() {
		return nil, fmt.Errorf("no certificates are issued in logical cluster %s", c)
	}
	if life <= 0 || life > clientCertificateLife {
		life = clientCertificateLife
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		URIs: []*url.URL{clusterURI(c, created)}, NotBefore: now.Add(-Backdated), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	authority := i.trusts().signer
	if end := authority.Leaf.NotAfter; t.NotAfter.After(end) {
		t.NotAfter = end
	}
	der, err := x509.CreateCertificate(rand.Reader, t, authority.Leaf, r.PublicKey, authority.PrivateKey)
	if err != nil {
		return nil, err
	}
	return encodeCertificate(der), nil
}

// users authenticates the users of workspaces. It implements [authenticator.Request].
type users struct{ *ClientCertificates }

// AuthenticateRequest implements [authenticator.Request].
func (i users) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	u, c, ok := i.verify(req, false)
	if !ok {
		return nil, false, nil
	}
	within, err := auth.OfWorkspace(c, u)
	if err != nil {
		return nil, false, fmt.Errorf("the client certificate is of the user %q, and %w", u.Name, err)
	}
	return &authenticator.Response{User: within}, true, nil
}

// agents authenticates agents. It implements [authenticator.Request].
type agents struct{ *ClientCertificates }

// AuthenticateRequest implements [authenticator.Request].
func (i agents) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	u, c, ok := i.verify(req, true)
	if !ok {
		return nil, false, nil
	}
	u.Groups = []string{auth.Agents}
	u.Extra[auth.ScopesKey] = []string{auth.ScopePrefix + string(c)}
	return &authenticator.Response{User: u}, true, nil
}

// verify returns the user in the certificate of a request, and the cluster of the request. It ignores
// certificates of other authorities and of other clusters, and either those of agents or all others.
func (i *ClientCertificates) verify(req *http.Request, agent bool) (*user.DefaultInfo, cluster.Name, bool) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, "", false
	}
	c, err := cluster.One(req.Context())
	leaf := req.TLS.PeerCertificates[0]
	if err != nil || c.System() || len(leaf.URIs) != 1 || strings.HasPrefix(leaf.Subject.CommonName, AgentPrefix) != agent {
		return nil, "", false // no workspace, or of the other kind
	}
	if created, ok := i.created(c); !ok || leaf.URIs[0].String() != clusterURI(c, created).String() {
		return nil, "", false
	}
	options, _ := i.VerifyOptions()
	if _, err := leaf.Verify(options); err != nil {
		return nil, "", false // another authenticator may know it
	}
	sum := sha256.Sum256(leaf.Raw)
	return &user.DefaultInfo{Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization,
		Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(sum[:])}}}, c, true
}
