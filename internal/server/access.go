package server

import (
	"context"
	"crypto"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	authnunion "k8s.io/apiserver/pkg/authentication/request/union"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// yearOfTokens is how long tokens that are asked for are valid at most, unless
// another limit is chosen.
const yearOfTokens = 24 * 365 * time.Hour

// Access says who is let in, besides the server's administrators and service
// accounts, and who is asked what they may do. With its zero value nobody else is let
// in, and RBAC decides.
type Access struct {
	// Authentication is that of kube-apiserver; nil stands for its defaults.
	Authentication *kubeoptions.BuiltInAuthenticationOptions
	// SigningKeyFile has the key that signs the tokens of service accounts. The default
	// is sa.key in the directory of the server, which is made if it is not there.
	SigningKeyFile string
	// AdminTokenFile is where the hash of the shard administrator's token is kept. If
	// it is relative, it is below the directory of the server.
	AdminTokenFile string
	// Authorization says who is asked what a user may do.
	Authorization auth.AuthorizationOptions
}

// Validate reports what keeps a from being used, all files that it names included.
func (a Access) Validate() error {
	if _, err := (auth.ServiceAccountOptions{}).WithFlags(a.Authentication); err != nil {
		return err
	}
	if a.SigningKeyFile != "" {
		if _, err := auth.SigningKey(a.SigningKeyFile); err != nil {
			return err
		}
	}
	if err := (auth.Authentication{Options: a.Authentication}).Validate(); err != nil {
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

// extendTokens reports whether tokens that are bound to a pod and asked for with
// kubelet's default are valid for a year, and using them later than that is a warning.
func (a Access) extendTokens() bool {
	return a.Authentication == nil || a.Authentication.ServiceAccounts == nil || a.Authentication.ServiceAccounts.ExtendExpiration
}

func (s *Server) prepareAccess(ctx context.Context) error {
	access := s.config.Access
	if err := s.config.Mounts.Validate(); err != nil {
		return err
	}
	s.rbac, s.namespaces = newRBACTables(s.store), newNamespaceTable(s.store)
	fresh := s.store.Spine().Fresh
	key, err := s.signingKey(ctx)
	if err != nil {
		return err
	}
	accounts, err := auth.ServiceAccountOptions{
		Key: key, ServiceAccount: s.serviceAccount, Secret: s.secret, PatchSecret: s.patchSecret, Fresh: fresh,
	}.WithFlags(access.Authentication)
	if err != nil {
		return err
	}
	if err := s.agreeOnSigner(ctx, accounts); err != nil {
		return err
	}
	if s.accounts, err = auth.NewServiceAccounts(accounts); err != nil {
		return err
	}
	tokens, err := s.commonAdmins(ctx)
	if err != nil {
		return err
	}
	s.admins, err = auth.NewAdmins(auth.AdminFiles{Kubeconfig: s.config.Kubeconfig, TokenStore: s.adminTokenFile(), Tokens: tokens})
	if err != nil {
		return err
	}
	s.authn, err = auth.NewAuthenticators(auth.Authentication{
		Admins: s.admins, ServiceAccounts: s.accounts, Options: access.Authentication,
		Workspaces: &auth.WorkspaceAuthentication{Of: s.issuersOf, Calls: s.callsOf, Fresh: fresh},
	})
	if err != nil {
		return err
	}
	s.authn.Request = authnunion.New(authenticator.RequestFunc(fromInProcess), s.authn.Request)
	authorization := auth.Authorization{RBAC: s.rbac, Exists: s.exists, Cluster: s.known, Fresh: fresh, OfUsers: questions(), AuthorizationOptions: access.Authorization}
	if s.config.Audit.PolicyFile != "" {
		authorization.Record = recordSteps
	}
	s.authz, err = auth.NewAuthorizer(authorization)
	return err
}

// known returns what requests to cluster c depend on besides its RBAC.
func (s *Server) known(c cluster.Name) (auth.Cluster, bool) {
	root, ok := s.tree.Cluster(c)
	return auth.Cluster{Phase: root.Phase, RequiredGroups: root.RequiredGroups, Parent: root.Parent}, ok
}

func (s *Server) signingKey(ctx context.Context) (crypto.Signer, error) {
	if file := s.config.Access.SigningKeyFile; file != "" {
		return auth.SigningKey(file)
	}
	if s.store.Several() {
		return s.commonSigningKey(ctx, s.signingKeyFile())
	}
	return auth.ServiceAccountKey(s.signingKeyFile())
}

func (s *Server) adminTokenFile() string {
	file := s.config.Access.AdminTokenFile
	switch {
	case file == "":
		file = ".admin-token-store"
	case filepath.IsAbs(file):
		return file
	}
	return filepath.Join(s.config.Dir, file)
}

// installDiscoveryOfIssuer serves what tells others how to verify the tokens of
// service accounts, if their issuer is one that can be asked.
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
		external.Host = "kcp" // nobody outside this process can reach it
	}
	discovery, err := s.accounts.Discovery(jwksURI, external.Host)
	if err != nil {
		return err
	}
	discovery.Install(s.generic.Handler.GoRestfulContainer)
	return nil
}
