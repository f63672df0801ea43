package admit

import (
	"context"
	"crypto/x509"
	"encoding/pem"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"

	"github.com/unforked/kcp/internal/request/bounds"
)

// Certificates returns the rules for CertificateSigningRequests. The rules of Kubernetes say who
// may approve and sign for a signer, and that no certificate is for the group system:masters. The last rule limits keys.
func Certificates(may authorizer.Authorizer) Rules {
	approve, sign := approval.NewPlugin(), signing.NewPlugin()
	approve.SetAuthorizer(may)
	sign.SetAuthorizer(may)
	return Rules{
		{Name: "CertificateKeys", Mutate: boundedKey},
		upstreams(approval.PluginName, approve),
		upstreams(signing.PluginName, sign),
		upstreams(subjectrestriction.PluginName, subjectrestriction.NewPlugin()),
	}
}

// upstreams returns the rule of a plugin of Kubernetes that needs no cluster but that of the
// context.
func upstreams(name string, p admission.ValidationInterface) Rule {
	return Rule{Name: name, Validate: func(ctx context.Context, r Request) error {
		if !p.Handles(r.GetOperation()) {
			return nil
		}
		return p.Validate(ctx, r.Attributes, nil)
	}}
}

// boundedKey refuses a request for a certificate whose key is too large. It comes before the validation of
// the request, which verifies its signature.
func boundedKey(_ context.Context, r Request) error {
	of, ok := r.GetObject().(*certificatesapi.CertificateSigningRequest)
	if !ok {
		return nil
	}
	block, _ := pem.Decode(of.Spec.Request)
	if block == nil {
		return nil // validation refuses it
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil //nolint:nilerr // validation refuses it
	}
	if err := bounds.PublicKey(request.PublicKey, bounds.Modulus); err != nil {
		return admission.NewForbidden(r.Attributes, err)
	}
	return nil
}
