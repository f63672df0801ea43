package issuers

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiservervalidation "k8s.io/apiserver/pkg/apis/apiserver/validation"

	"github.com/unforked/kcp/internal/cluster"
)

// MaxProviders is the maximum number of identity providers in a
// WorkspaceAuthenticationConfiguration, of configurations that a WorkspaceType refers to, and of
// connected identity providers of one logical cluster.
const MaxProviders = 16

// A Provider is an identity provider that a logical cluster configures for workspaces of some types.
type Provider struct {
	// Tenant is the cluster with the configuration. URL is the issuer in tokens. Hash is
	// the SHA-256 of the configuration.
	Tenant cluster.Name
	URL    string
	Hash   [sha256.Size]byte
	text   []byte
}

// NewProvider returns the identity provider of an element of spec.jwt, in JSON, of a
// WorkspaceAuthenticationConfiguration in cluster tenant. It does not validate the text.
func NewProvider(tenant cluster.Name, text []byte) Provider {
	var named struct {
		Issuer struct {
			URL string `json:"url"`
		} `json:"issuer"`
	}
	_ = json.Unmarshal(text, &named) // no token has an empty issuer
	return Provider{tenant, named.Issuer.URL, sha256.Sum256(text), text}
}

// Validate returns an error if the identity provider cannot be used.
func (w Provider) Validate(own []string) error {
	_, err := w.read(own)
	return err
}

func (w Provider) read(own []string) (apiserver.JWTAuthenticator, error) {
	var in apiserverv1.JWTAuthenticator
	var out apiserver.JWTAuthenticator
	if len(w.text) > maxConfiguration {
		return out, fmt.Errorf("the identity provider has %d bytes, and the limit is %d", len(w.text), maxConfiguration)
	}
	if err := json.Unmarshal(w.text, &in); err != nil {
		return out, err
	}
	if err := apiserverv1.Convert_v1_JWTAuthenticator_To_apiserver_JWTAuthenticator(&in, &out, nil); err != nil {
		return out, err
	}
	if out.Issuer.EgressSelectorType != "" {
		return out, errors.New("issuer.egressSelectorType: there are no egress selectors; remove it")
	}
	_, errs := apiservervalidation.CompileAndValidateJWTAuthenticator(newBoundedCompiler(nil), out, own)
	return out, errs.ToAggregate()
}
