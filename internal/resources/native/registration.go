package native

import (
	"context"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	mutatingpolicystore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy/storage"
	mutatingbindingstore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding/storage"
	mutatingwebhookstore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration/storage"
	validatingpolicystore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy/storage"
	validatingbindingstore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding/storage"
	validatingwebhookstore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// settleTime limits how long a write of a webhook or policy waits until it is in force.
const settleTime = 2 * time.Second

// registrationGroup replaces upstream's group: upstream's storages of policies find the
// resource of a kind without the context of the request, and so without the cluster.
func (s Groups) registrationGroup(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(admissionregistration.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	mutating, err := mutatingwebhookstore.NewREST(g)
	if err != nil {
		return info, err
	}
	validating, err := validatingwebhookstore.NewREST(g)
	if err != nil {
		return info, err
	}
	authz, kinds := kindAuthorizer{s.Authorizer, s.Kind}, kindResolver{}
	validators, validatorStatus, err := validatingpolicystore.NewREST(g, authz, kinds)
	if err != nil {
		return info, err
	}
	validatorBindings, err := validatingbindingstore.NewREST(g, authz, &validatingbindingstore.DefaultPolicyGetter{Getter: validators}, kinds)
	if err != nil {
		return info, err
	}
	mutators, err := mutatingpolicystore.NewREST(g, authz, kinds)
	if err != nil {
		return info, err
	}
	mutatorBindings, err := mutatingbindingstore.NewREST(g, authz, &mutatingbindingstore.DefaultPolicyGetter{Getter: mutators}, kinds)
	if err != nil {
		return info, err
	}
	s.settling(mutating.Store, validating.Store, validators.Store, validatorBindings.Store, mutators.Store, mutatorBindings.Store)
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"mutatingwebhookconfigurations":      mutating,
		"validatingwebhookconfigurations":    validating,
		"validatingadmissionpolicies":        validators,
		"validatingadmissionpolicies/status": validatorStatus,
		"validatingadmissionpolicybindings":  validatorBindings,
		"mutatingadmissionpolicies":          mutators,
		"mutatingadmissionpolicybindings":    mutatorBindings,
	}
	return info, nil
}

// settling makes writes return when they are in force in this process.
func (s Groups) settling(stores ...*genericregistry.Store) {
	settle := func() {
		ctx, cancel := context.WithTimeout(context.Background(), settleTime)
		defer cancel()
		s.Settle(ctx)
	}
	for _, store := range stores {
		store.AfterCreate = func(runtime.Object, *metav1.CreateOptions) { settle() }
		store.AfterUpdate = func(runtime.Object, *metav1.UpdateOptions) { settle() }
		store.AfterDelete = func(runtime.Object, *metav1.DeleteOptions) { settle() }
	}
}

// ofKind marks the name of a kind that stands for its resource.
const ofKind = "kind:"

// kindResolver resolves no kind: it does not know the cluster. It puts the kind in place of the
// resource, for [kindAuthorizer].
type kindResolver struct{}

// Resolve implements the resolver of the storages of policies.
func (kindResolver) Resolve(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	return gvk.GroupVersion().WithResource(ofKind + gvk.Kind), nil
}

// kindAuthorizer authorizes the use of parameters of a kind, in the cluster of the request. If
// the cluster does not serve the kind, the user needs the right for all resources, as upstream
// has it.
type kindAuthorizer struct {
	authorizer authorizer.Authorizer
	kind       func(cluster.Name, schema.GroupVersionKind) (catalog.Kind, bool)
}

// Authorize implements [authorizer.Authorizer].
func (k kindAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	name, ok := strings.CutPrefix(a.GetResource(), ofKind)
	if !ok {
		return k.authorizer.Authorize(ctx, a)
	}
	c, err := cluster.One(ctx)
	if err != nil {
		return authorizer.DecisionDeny, "", err
	}
	resource := "*"
	if found, ok := k.kind(c, schema.GroupVersionKind{Group: a.GetAPIGroup(), Version: a.GetAPIVersion(), Kind: name}); ok {
		resource = found.Plural
	}
	return k.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUser(), Verb: a.GetVerb(), ResourceRequest: true, Name: a.GetName(), Namespace: a.GetNamespace(),
		APIGroup: a.GetAPIGroup(), APIVersion: a.GetAPIVersion(), Resource: resource,
	})
}
