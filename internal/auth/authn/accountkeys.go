package authn

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/util/keyutil"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Limits of the lifetime that a request for a token may ask for.
const (
	minTokenLife = time.Hour
	maxTokenLife = (1 << 32) * time.Second
)

// WithFlags returns o with the service account flags of kube-apiserver applied. It reads
// the key files that they name, and adds their public keys to o.VerifyKeys.
func (o ServiceAccountOptions) WithFlags(f *kubeoptions.BuiltInAuthenticationOptions) (ServiceAccountOptions, error) {
	if f == nil {
		return o, nil
	}
	o.Audiences = authenticator.Audiences(f.APIAudiences)
	if slices.Contains(o.Audiences, "") {
		return o, errors.New("--api-audiences has an empty audience; leave it out")
	}
	a := f.ServiceAccounts
	if a == nil {
		return o, nil
	}
	if err := checkAccountFlags(a); err != nil {
		return o, err
	}
	o.Issuers, o.NoLookup = a.Issuers, !a.Lookup
	for _, file := range a.KeyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return o, fmt.Errorf("--service-account-key-file %s: %w", file, err)
		}
		o.VerifyKeys = append(o.VerifyKeys, keys...)
	}
	return o, nil
}

func checkAccountFlags(a *kubeoptions.ServiceAccountAuthenticationOptions) error {
	for n, issuer := range a.Issuers {
		_, err := url.Parse(issuer)
		switch {
		case issuer == "":
			return errors.New("--service-account-issuer is empty; name the issuer of tokens, usually an https URL, or leave it out")
		case strings.Contains(issuer, ":") && err != nil:
			return fmt.Errorf("--service-account-issuer %q has a colon, but is no URL: %w", issuer, err)
		case slices.Contains(a.Issuers[:n], issuer):
			return fmt.Errorf("--service-account-issuer %q is given twice; give each once", issuer)
		case issuer == serviceaccount.LegacyIssuer:
			return fmt.Errorf("--service-account-issuer %q is reserved for the tokens in secrets; choose another", issuer)
		}
	}
	if l := a.MaxExpiration; l != 0 && (l < minTokenLife || l > maxTokenLife) {
		return fmt.Errorf("--service-account-max-token-expiration %s is out of bounds; use one from %s to %s", l, minTokenLife, maxTokenLife)
	}
	if u, err := url.Parse(a.JWKSURI); a.JWKSURI != "" && (err != nil || u.Scheme != "https") {
		return fmt.Errorf("--service-account-jwks-uri %q is no https URL; use the URL at which clients fetch the keys", a.JWKSURI)
	}
	if a.JWKSURI != "" && len(a.Issuers) > 0 && !strings.HasPrefix(a.Issuers[0], "https://") {
		return fmt.Errorf("--service-account-jwks-uri has no effect, as the issuer %q is no https URL and cannot be discovered; choose another --service-account-issuer", a.Issuers[0])
	}
	return nil
}

// Discovery returns the server of the OpenID configuration and the public keys, with which
// others verify tokens. Clients fetch the keys at jwksURI. If it is empty, they fetch them
// at address, the host and port of this server. An issuer that is no https URL cannot be
// discovered.
func (s *ServiceAccounts) Discovery(jwksURI, address string) (*routes.OpenIDMetadataServer, error) {
	provider, err := serviceaccount.NewOpenIDMetadataProvider(s.Issuer(), jwksURI, address, &s.keys)
	if err != nil {
		return nil, fmt.Errorf("discovery of the issuer of tokens: %w", err)
	}
	return routes.NewOpenIDMetadataServer(provider), nil
}
