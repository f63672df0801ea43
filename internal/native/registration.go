package native

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	mutatingwebhookstore "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration/storage"
	validatingwebhookstore "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration/storage"
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
	s.settling(mutating.Store, validating.Store)
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"mutatingwebhookconfigurations":   mutating,
		"validatingwebhookconfigurations": validating,
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
