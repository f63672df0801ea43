package kcp

import (
	"errors"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/server"
)

type (
	// AuthenticationOptions are the options of kube-apiserver: certificates, tokens,
	// proxies, identity providers, webhooks, and service account tokens. Their AddFlags
	// method adds them to a flag set.
	AuthenticationOptions = kubeoptions.BuiltInAuthenticationOptions
	// Authorization configures the authorizers and their order.
	Authorization = authz.AuthorizationOptions
)

// NewAuthentication returns the default authentication options of a [Server]. They
// authenticate administrators and service accounts. Requests without credentials are
// anonymous.
func NewAuthentication() *AuthenticationOptions { return authn.DefaultOptions() }

// access returns the access options of the server, after it has checked them.
func (s *Server) access() (server.Access, error) {
	a := server.Access{
		Authentication: s.Authentication, SigningKeyFile: s.ServiceAccountKeyFile,
		AdminTokenFile: s.AdminTokenFile, Authorization: s.Authorization,
	}
	if s.ClientCAFile == "" && s.TokenFile == "" {
		return a, a.Validate()
	}
	o := NewAuthentication()
	if s.Authentication != nil {
		own := *s.Authentication // a copy: the caller's options stay unchanged
		o = &own
	}
	if s.ClientCAFile != "" {
		if o.ClientCert != nil && o.ClientCert.ClientCA != "" {
			return a, errors.New("ClientCAFile and Authentication.ClientCert both name a file; set only one of them")
		}
		o.ClientCert = &genericoptions.ClientCertAuthenticationOptions{ClientCA: s.ClientCAFile}
	}
	if s.TokenFile != "" {
		if o.TokenFile != nil && o.TokenFile.TokenFile != "" {
			return a, errors.New("TokenFile and Authentication.TokenFile both name a file; set only one of them")
		}
		o.TokenFile = &kubeoptions.TokenFileAuthenticationOptions{TokenFile: s.TokenFile}
	}
	a.Authentication = o
	return a, a.Validate()
}
