package server

import (
	"cmp"
	"context"
	"crypto"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/client-go/kubernetes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/auth/issuers"
	"github.com/unforked/kcp/internal/auth/lookup"
	"github.com/unforked/kcp/internal/auth/reach"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/observe/record"
	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/request/flow"
	"github.com/unforked/kcp/internal/storage/store"
)

// yearOfTokens is the default maximum lifetime of requested service account tokens.
const yearOfTokens = 24 * 365 * time.Hour

// signingKeyFile is the file of the signing key in the directory of the server.
const signingKeyFile = "sa.key"

// Access configures authentication and authorization. The zero value authenticates
// administrators and service accounts only, and authorizes with RBAC.
type Access struct {
	// Authentication holds the options of kube-apiserver; nil means their defaults.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	// SigningKeyFile is the file of the private key that signs service account tokens. The
	// default is sa.key in the server's directory, which the server creates if it is missing.
	SigningKeyFile string
	// KeysEvery is how often files with keys and authorities are read, 10 seconds by default.
	KeysEvery time.Duration
	// AdminTokenFile is the file of the hashes of the administrators' tokens. A relative
	// path is below the server's directory. The default is .admin-token-store.
	AdminTokenFile string
	// Authorization configures the authorizers and their order.
	Authorization authz.AuthorizationOptions
}

// Validate checks the options and reads all files that they name.
func (a Access) Validate() error {
	if _, err := (authn.ServiceAccountOptions{}).WithFlags(a.Authentication); err != nil {
		return err
	}
	if a.SigningKeyFile != "" {
		if _, err := credentials.SigningKey(a.SigningKeyFile); err != nil {
			return err
		}
	}
	if err := (authn.Authentication{Options: a.Authentication}).Validate(); err != nil {
		return err
	}
	return a.Authorization.Validate()
}

func (a Access) maxTokenLife() time.Duration {
	if o := a.Authentication; o != nil && o.ServiceAccounts != nil && o.ServiceAccounts.MaxExpiration > 0 {
		return o.ServiceAccounts.MaxExpiration
	}
	return yearOfTokens
}

// extendTokens reports whether the server extends pod-bound tokens that are requested with
// kubelet's default lifetime to a year. Use after the requested lifetime gives a warning.
func (a Access) extendTokens() bool {
	return a.Authentication == nil || a.Authentication.ServiceAccounts == nil || a.Authentication.ServiceAccounts.ExtendExpiration
}

func (s *Server) prepareAccess(ctx context.Context) error {
	access := s.config.Access
	if err := s.config.Mounts.Validate(); err != nil {
		return err
	}
	s.rbac, s.namespaces, s.quotas = lookup.NewRBAC(s.store), s.store.GuardNamespaces(), limits.New(s.store)
	fresh, current := s.store.Feed().Fresh, s.store.Feed().Current
	key, err := s.signingKey(ctx)
	if err != nil {
		return err
	}
	s.signing, err = authn.ServiceAccountOptions{
		Key: key, ServiceAccount: s.serviceAccount, Secret: s.secret, PatchSecret: s.patchSecret, Fresh: fresh, Current: current,
	}.WithFlags(access.Authentication)
	if err != nil {
		return err
	}
	if err := credentials.AgreeOnSigner(ctx, s.store, s.signing); err != nil {
		return err
	}
	if s.accounts, err = authn.NewServiceAccounts(s.signing); err != nil {
		return err
	}
	if s.admins, err = credentials.Admins(ctx, s.store, s.adminFiles()); err != nil {
		return err
	}
	s.clients = authn.NewClientCertificates(func(c cluster.Name) (time.Time, bool) {
		root, ok := s.tree.Cluster(c)
		return root.Created, ok
	})
	if err := s.refreshClients(ctx); err != nil {
		return err
	}
	s.authn, err = authn.NewAuthenticators(authn.Authentication{
		Admins: authn.NewAdmins(s.admins), ServiceAccounts: s.accounts, Clients: s.clients, Options: access.Authentication,
		Workspaces: &issuers.WorkspaceOptions{Of: s.issuersOf, Owner: s.Tenant, Calls: s.callsOf, Fresh: fresh, Current: current, Compute: func(ctx context.Context, c cluster.Name, f func()) error {
			return s.computeFor(ctx, c, fair.Light, f)
		}},
	})
	if err != nil {
		return err
	}
	s.authn.Request = authnunion.New(authenticator.RequestFunc(inprocess.Authenticate), s.authn.Request)
	authorization := authz.Authorization{RBAC: s.rbac, Exists: s.exists, Cluster: s.known, Limited: s.limited, Fresh: fresh, Current: current, OfUsers: reach.Paths(), AuthorizationOptions: access.Authorization}
	if s.config.Audit.PolicyFile != "" {
		authorization.Record = record.Steps
	}
	s.authz, err = authz.NewAuthorizer(authorization)
	return err
}

// known returns the phase, required groups and parent of cluster c for the authorizer.
func (s *Server) known(c cluster.Name) (authz.Cluster, bool) {
	root, ok := s.tree.Cluster(c)
	return authz.Cluster{Phase: root.Phase, RequiredGroups: root.RequiredGroups, Parent: root.Parent}, ok
}

// limited returns the cluster of the export that limits what its consumers may do with a
// resource of cluster c. Without the export there is no limit.
func (s *Server) limited(c cluster.Name, gr schema.GroupResource) (cluster.Name, bool) {
	name, ok := s.apis.Bindings.ExportOf(c, gr)
	if !ok {
		return "", false
	}
	e, ok := s.apis.Exports.Get(name.Cluster, "", name.Name)
	return name.Cluster, ok && e.Limited
}

func (s *Server) signingKey(ctx context.Context) (crypto.Signer, error) {
	if file := s.config.Access.SigningKeyFile; file != "" {
		return credentials.SigningKey(file)
	}
	if s.store.Shared() {
		return credentials.SharedSigningKey(ctx, s.store, filepath.Join(s.config.Dir, signingKeyFile))
	}
	return credentials.ServiceAccountKey(filepath.Join(s.config.Dir, signingKeyFile))
}

func (s *Server) adminFiles() credentials.AdminFiles {
	file := cmp.Or(s.config.Access.AdminTokenFile, ".admin-token-store")
	if !filepath.IsAbs(file) {
		file = filepath.Join(s.config.Dir, file)
	}
	return credentials.AdminFiles{Kubeconfig: s.config.Kubeconfig, TokenStore: file}
}

// installDiscoveryOfIssuer serves the OpenID discovery documents with which others verify
// service account tokens. It serves none if the issuer is no https URL.
func (s *Server) installDiscoveryOfIssuer() error {
	if !strings.HasPrefix(s.accounts.Issuer(), "https://") {
		return nil
	}
	external, err := url.Parse(s.config.ExternalURL)
	if err != nil {
		return err
	}
	var jwksURI string
	if o := s.config.Access.Authentication; o != nil && o.ServiceAccounts != nil {
		jwksURI = o.ServiceAccounts.JWKSURI
	}
	if external.Host == "" {
		external.Host = "kcp" // only this process can reach the server
	}
	discovery, err := s.accounts.Discovery(jwksURI, external.Host)
	if err != nil {
		return err
	}
	discovery.Install(s.generic.Handler.GoRestfulContainer)
	return nil
}

// serviceAccount and secret return the objects that a token is bound to.

func (s *Server) serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return lookup.ServiceAccount(ctx, s.store, namespace, name)
}

func (s *Server) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return lookup.Secret(ctx, s.store, namespace, name)
}

// patchSecret patches a secret to record that its token is in use.
func (s *Server) patchSecret(ctx context.Context, namespace, name string, patch []byte) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(s.InProcess(string(c), System()))
	if err != nil {
		return err
	}
	_, err = clients.CoreV1().Secrets(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// issuersOf returns the identity providers of workspace c. s.issuers and s.types are set after
// the authenticators are built.
func (s *Server) issuersOf(ctx context.Context, c cluster.Name) []issuers.Provider {
	return s.issuers.Of(ctx, s.types, c)
}

// callsOf returns a transport for calls to a tenant's servers. bundle is the CA bundle in
// PEM.
func (s *Server) callsOf(tenant cluster.Name, bundle []byte) (http.RoundTripper, error) {
	return s.dialer.For(tenant, bundle)
}

// computeFor runs evaluate with a processor seat of the tenant of a cluster. A request that has
// a seat gives it up meanwhile.
func (s *Server) computeFor(ctx context.Context, c cluster.Name, class fair.Class, evaluate func()) (err error) {
	work := s.shares.Begin()
	defer work.End()
	if t, ok := s.tenantOf(c); ok {
		work.For(flow.TenantKey(t))
	}
	fair.Wait(ctx, func() {
		if err = work.Compute(ctx, class); err == nil {
			evaluate()
		}
	})
	return err
}

func (s *Server) exists(ctx context.Context, c cluster.Name) bool {
	state, err := s.store.State(ctx, c)
	return err == nil && state != store.Gone
}
