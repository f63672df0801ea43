package auth

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Authentication says who is known. With its zero value nobody is, and every
// request without credentials is anonymous.
type Authentication struct {
	// Admins are the server's own administrators.
	Admins *Admins

	// ClientCAFile is a file of CA certificates (PEM). A client certificate that one
	// of them signed is for the user in its common name and the groups in its
	// organizations.
	ClientCAFile string

	// TokenFile is a CSV file of token, user name, UID and, optionally, groups.
	TokenFile string

	// ServiceAccounts verifies the tokens of service accounts.
	ServiceAccounts *ServiceAccounts

	// Audiences are those of the API server. The default is that of ServiceAccounts.
	Audiences authenticator.Audiences

	// NoAnonymous refuses requests without credentials.
	NoAnonymous bool
}

// Authenticators find out who a request comes from.
type Authenticators struct {
	authenticator.Request

	// Audiences are those that a token must be for to be accepted by the API server.
	Audiences authenticator.Audiences

	// ClientCA has the CAs of client certificates, nil if there are none. The TLS
	// listener must ask clients for certificates of these CAs, and runs the loop
	// that reads the file again when it changes.
	ClientCA dynamiccertificates.CAContentProvider
}

// NewAuthenticators returns Authenticators for o. They are asked in the order of
// the fields of o, and a request is anonymous if it has no credentials at all.
func NewAuthenticators(o Authentication) (*Authenticators, error) {
	a := &Authenticators{Audiences: o.Audiences}
	if len(a.Audiences) == 0 && o.ServiceAccounts != nil {
		a.Audiences = o.ServiceAccounts.Audiences()
	}
	var requests []authenticator.Request
	var tokens []authenticator.Token
	if o.Admins != nil {
		admins := authenticator.WrapAudienceAgnosticToken(a.Audiences, o.Admins)
		requests = append(requests, bearertoken.New(admins))
		tokens = append(tokens, admins)
	}
	if o.ClientCAFile != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", o.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("read the CAs of client certificates: %w", err)
		}
		a.ClientCA = ca
		requests = append(requests, x509.NewDynamic(ca.VerifyOptions, x509.CommonNameUserConversion))
	}
	if o.TokenFile != "" {
		file, err := tokenfile.NewCSV(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token file %s: %w", o.TokenFile, err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(a.Audiences, file))
	}
	if o.ServiceAccounts != nil {
		tokens = append(tokens, o.ServiceAccounts)
	}
	if len(tokens) > 0 {
		// The answers must not be cached by token: they differ from cluster to cluster.
		all := tokenunion.New(tokens...)
		requests = append(requests, bearertoken.New(all), websocket.NewProtocolAuthenticator(all))
	}
	a.Request = group.NewAuthenticatedGroupAdder(union.New(requests...))
	if !o.NoAnonymous {
		a.Request = union.NewFailOnError(a.Request, anonymous.NewAuthenticator(nil))
	}
	return a, nil
}
