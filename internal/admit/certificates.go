package admit

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
)

// Certificates returns the rules of Kubernetes for CertificateSigningRequests: who may approve
// and sign for a signer, and that no certificate is for the group system:masters.
func Certificates(may authorizer.Authorizer) Rules {
	approve, sign := approval.NewPlugin(), signing.NewPlugin()
	approve.SetAuthorizer(may)
	sign.SetAuthorizer(may)
	return Rules{
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
