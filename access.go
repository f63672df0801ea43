package kcp

import (
	"errors"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/server"
)

type (
	// AuthenticationOptions are those of kube-apiserver: certificates, tokens, proxies,
	// identity providers, webhooks, and how the tokens of service accounts are made.
	// They can add themselves to a set of flags.
	AuthenticationOptions = kubeoptions.BuiltInAuthenticationOptions
	// Authorization says who is asked, in which order, whether a request is allowed.
	Authorization = auth.AuthorizationOptions
)

// NewAuthentication returns the defaults of what a [Server] can be told about
// authentication: nobody is let in but administrators and service accounts, and who
// brings no credentials is anonymous.
func NewAuthentication() *AuthenticationOptions { return auth.DefaultOptions() }

// access gathers who is let in, and checks it before anything is started.
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
		own := *s.Authentication // what is the caller's is not changed
		o = &own
	}
	if s.ClientCAFile != "" {
		if o.ClientCert != nil && o.ClientCert.ClientCA != "" {
			return a, errors.New("ClientCAFile and Authentication.ClientCert name one file each; set only one of them")
		}
		o.ClientCert = &genericoptions.ClientCertAuthenticationOptions{ClientCA: s.ClientCAFile}
	}
	if s.TokenFile != "" {
		if o.TokenFile != nil && o.TokenFile.TokenFile != "" {
			return a, errors.New("TokenFile and Authentication.TokenFile name one file each; set only one of them")
		}
		o.TokenFile = &kubeoptions.TokenFileAuthenticationOptions{TokenFile: s.TokenFile}
	}
	a.Authentication = o
	return a, a.Validate()
}
