// Package authn authenticates requests, with the authenticators of Kubernetes: client certificates,
// tokens of service accounts, identity providers, webhooks and files. It decides their order, and which
// users each may name. It hides tenancy: it reads the logical cluster of a request from its context.
//
// Package issuers has the identity providers. Here they are authenticators of tokens.
package authn

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/issuers"
)

// Authentication configures the authenticators. With its zero value every request without
// credentials is anonymous, and no credentials are accepted.
type Authentication struct {
	// Admins are the server's own administrators.
	Admins *Admins

	// ServiceAccounts verifies the tokens of service accounts.
	ServiceAccounts *ServiceAccounts

	// Workspaces configures the identity providers of single workspaces; nil means none.
	Workspaces *issuers.WorkspaceOptions

	// Clients authenticates client certificates of single workspaces; nil means none.
	Clients *ClientCertificates

	// Options are the authentication options of kube-apiserver; nil means [DefaultOptions].
	// Their service account options are ignored: see ServiceAccounts.
	Options *kubeoptions.BuiltInAuthenticationOptions
}

// DefaultOptions returns options that configure no authenticator and allow anonymous
// requests.
func DefaultOptions() *kubeoptions.BuiltInAuthenticationOptions {
	return kubeoptions.NewBuiltInAuthenticationOptions().
		WithAnonymous().WithClientCert().WithOIDC().WithRequestHeader().WithServiceAccounts().WithTokenFile().WithWebHook()
}

// Authenticators authenticate requests.
type Authenticators struct {
	authenticator.Request

	// Audiences are the audiences of the API server. A token must be for one of them.
	Audiences authenticator.Audiences

	// ClientCA has the CAs of client certificates, including those of proxies, or is nil
	// without any. The TLS listener must request client certificates of these CAs. It must
	// also run the provider's loop, which reloads changed files.
	ClientCA dynamiccertificates.CAContentProvider

	// RequestHeader has the headers in which proxies name users; nil means that no proxy
	// may. These headers must not be passed on after authentication.
	RequestHeader *authenticatorfactory.RequestHeaderConfig

	providers  *issuers.Providers
	workspaces *issuers.WorkspaceProviders
}

// NewAuthenticators returns Authenticators for o. They run in this order: administrators,
// proxies, client certificates, the token file, service accounts, identity providers, the
// webhook, the identity providers of the workspace. A request is anonymous if it has no
// credentials at all. The caller must call Close.
func NewAuthenticators(o Authentication) (*Authenticators, error) {
	p, err := o.read()
	if err != nil {
		return nil, err
	}
	a := &Authenticators{Audiences: p.audiences, RequestHeader: p.proxies}
	var requests []authenticator.Request
	var tokens []authenticator.Token
	if o.Admins != nil {
		admins := authenticator.WrapAudienceAgnosticToken(a.Audiences, o.Admins)
		requests = append(requests, bearertoken.New(admins))
		tokens = append(tokens, admins)
	}
	if h := p.proxies; h != nil {
		a.ClientCA = h.CAContentProvider
		proxies := headerrequest.NewDynamicVerifyOptionsSecure(h.CAContentProvider.VerifyOptions,
			h.AllowedClientNames, h.UsernameHeaders, h.UIDHeaders, h.GroupHeaders, h.ExtraHeaderPrefixes)
		requests = append(requests, vettedRequest(authenticator.WrapAudienceAgnosticRequest(a.Audiences, proxies), true))
	}
	if p.clientCA != nil {
		a.ClientCA = withCA(a.ClientCA, p.clientCA)
		requests = append(requests, vettedRequest(x509.NewDynamic(p.clientCA.VerifyOptions, x509.CommonNameUserConversion), false))
	}
	if o.Clients != nil {
		a.ClientCA = withCA(a.ClientCA, o.Clients)
		requests = append(requests, authenticator.WrapAudienceAgnosticRequest(a.Audiences, users{o.Clients}))
	}
	if p.tokenFile != nil {
		tokens = append(tokens, vettedToken(authenticator.WrapAudienceAgnosticToken(a.Audiences, p.tokenFile), false))
	}
	if o.ServiceAccounts != nil {
		tokens = append(tokens, o.ServiceAccounts)
	}
	if p.providers.Wanted() {
		if err := p.providers.Start(); err != nil {
			return nil, err
		}
		a.providers = p.providers
		tokens = append(tokens, vettedToken(authenticator.WrapAudienceAgnosticToken(a.Audiences, p.providers), false))
	}
	if p.webhook != nil {
		tokens = append(tokens, vettedToken(p.webhook, true))
	}
	if o.Workspaces != nil {
		a.workspaces = issuers.NewWorkspaceProviders(*o.Workspaces, p.own)
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(a.Audiences, a.workspaces))
	}
	if len(tokens) > 0 {
		// A cache by token would be wrong: the same token authenticates differently per cluster.
		all := tokenunion.New(tokens...)
		requests = append(requests, bearertoken.New(all), websocket.NewProtocolAuthenticator(all))
	}
	a.Request = group.NewAuthenticatedGroupAdder(withoutViewGroups(union.New(requests...)))
	a.addOthers(o.Clients, p.providers.Anonymous())
	return a, nil
}

// addOthers adds the users that are not in system:authenticated.
func (a *Authenticators) addOthers(clients *ClientCertificates, nobody apiserver.AnonymousAuthConfig) {
	if clients != nil {
		a.Request = union.New(authenticator.WrapAudienceAgnosticRequest(a.Audiences, agents{clients}), a.Request)
	}
	if nobody.Enabled {
		a.Request = union.NewFailOnError(a.Request, anonymous.NewAuthenticator(nobody.Conditions))
	}
}

func withCA(have, add dynamiccertificates.CAContentProvider) dynamiccertificates.CAContentProvider {
	if have == nil {
		return add
	}
	return dynamiccertificates.NewUnionCAContentProvider(have, add)
}

// Run reloads the file of identity providers when it changes, and stops unused identity
// providers of workspaces. It returns when ctx ends.
func (a *Authenticators) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if a.workspaces != nil {
		running.Go(func() { a.workspaces.Run(ctx) })
	}
	if a.providers != nil {
		a.providers.Run(ctx)
	}
}

// Close stops the background work. The Authenticators must not be used afterwards.
func (a *Authenticators) Close() {
	if a.providers != nil {
		a.providers.Close()
	}
	if a.workspaces != nil {
		a.workspaces.Close()
	}
}
