package server

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/authentication"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install" // adds its types to the scheme
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	clusterrolepolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/policybased"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	clusterrolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/policybased"
	clusterrolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	rolepolicy "k8s.io/kubernetes/pkg/registry/rbac/role/policybased"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	rolebindingpolicy "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/policybased"
	rolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/store"
)

const (
	protobufMediaType = runtime.ContentTypeProtobuf
)

// uncached resources expire by lease.
var uncached = []schema.GroupResource{{Resource: "events"}}

// planned resources are going to be compiled into the server. What tenants defined of
// these names could not be reached any more then.
var planned = []schema.GroupResource{{Resource: "resourcequotas"}}

// nativeStorage returns how kinds compiled into the server are encoded: in the
// storage version that upstream has for the effective version.
func nativeStorage(s *store.Store, version basecompatibility.EffectiveVersion, share func(runtime.Object)) (*store.Getter, error) {
	factory := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(version)
	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(legacyscheme.Scheme, version)
	for _, override := range factory.ResourceEncodingOverrides {
		encoding.SetResourceEncoding(override.GroupResource(), override.GroupVersion(), schema.GroupVersion{Group: override.Group, Version: runtime.APIVersionInternal})
	}
	config := *storagebackend.NewDefaultConfig("/", nil)
	storage := serverstorage.NewDefaultStorageFactory(config, protobufMediaType, legacyscheme.Codecs, encoding, serverstorage.NewResourceConfig(), nil)
	return s.Natives(func(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
		if gr.Group == apiextensions.GroupName { // which has a scheme of its own
			return storagebackend.NewDefaultConfig("/", apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)).ForResource(gr), nil
		}
		return storage.NewConfig(gr, example)
	}, uncached...).Share(share), nil
}

// A nativeGroup is an API group compiled into the server.
type nativeGroup struct {
	name  string // "core" for the group without a name
	build func() (genericapiserver.APIGroupInfo, error)
}

// nativeGroups returns the groups, in the order of installation.
func (s *Server) nativeGroups(g generic.RESTOptionsGetter) []nativeGroup {
	enabled := serverstorage.NewResourceConfig()
	enabled.EnableVersions(corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion)
	enabled.DisableResources(corev1.SchemeGroupVersion.WithResource("resourcequotas"))
	access := s.config.Access
	return []nativeGroup{
		{"core", func() (genericapiserver.APIGroupInfo, error) {
			return (&corerest.GenericConfig{
				EventTTL: s.config.EventTTL, ServiceAccountIssuer: s.accounts, APIAudiences: s.authn.Audiences,
				ServiceAccountMaxExpiration: access.maxTokenLife(), LoopbackClientConfig: s.loopback,
				ExtendExpiration: access.extendTokens(), MaxExtendedExpiration: yearOfTokens,
			}).NewRESTStorage(enabled, g)
		}},
		{"authentication.k8s.io", s.authenticationGroup},
		{"authorization.k8s.io", func() (genericapiserver.APIGroupInfo, error) {
			return authorizationrest.RESTStorageProvider{Authorizer: s.authz, RuleResolver: s.authz}.NewRESTStorage(kubernetesDefaults(), g)
		}},
		{"coordination.k8s.io", func() (genericapiserver.APIGroupInfo, error) {
			return coordinationrest.RESTStorageProvider{}.NewRESTStorage(kubernetesDefaults(), g)
		}},
		{"events.k8s.io", func() (genericapiserver.APIGroupInfo, error) {
			return eventsrest.RESTStorageProvider{TTL: s.config.EventTTL}.NewRESTStorage(enabled, g)
		}},
		{"rbac.authorization.k8s.io", func() (genericapiserver.APIGroupInfo, error) { return s.rbacGroup(g) }},
		{"apiextensions.k8s.io", func() (genericapiserver.APIGroupInfo, error) { return s.definitions.APIGroup(g) }},
	}
}

// kubernetesDefaults enables the versions that are generally available.
func kubernetesDefaults() *serverstorage.ResourceConfig {
	r := serverstorage.NewResourceConfig()
	for _, gv := range legacyscheme.Scheme.PreferredVersionAllGroups() {
		if gv.Version == "v1" {
			r.EnableVersions(gv)
		}
	}
	return r
}

// authenticationGroup is built here because upstream's token review asks the
// authenticators without the context, and so the cluster, of the request.
func (s *Server) authenticationGroup() (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(authentication.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"tokenreviews":       auth.NewTokenReviews(s.authn),
		"selfsubjectreviews": selfsubjectreview.NewREST(),
	}
	return info, nil
}

// rbacGroup is built here because upstream's checks escalation against the stored
// roles alone, and the roles that every cluster has are not stored in it.
func (s *Server) rbacGroup(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(rbacv1.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	roles, err := rolestore.NewREST(g)
	if err != nil {
		return info, err
	}
	clusterRoles, err := clusterrolestore.NewREST(g)
	if err != nil {
		return info, err
	}
	roleBindings, err := rolebindingstore.NewREST(g)
	if err != nil {
		return info, err
	}
	clusterRoleBindings, err := clusterrolebindingstore.NewREST(g)
	if err != nil {
		return info, err
	}
	rules := s.authz.Rules()
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"roles":               rolepolicy.NewStorage(roles, s.authz, rules),
		"clusterroles":        granting{clusterrolepolicy.NewStorage(clusterRoles, s.authz, rules), rbacResource("clusterroles")},
		"rolebindings":        rolebindingpolicy.NewStorage(roleBindings, s.authz, rules),
		"clusterrolebindings": granting{clusterrolebindingpolicy.NewStorage(clusterRoleBindings, s.authz, rules), rbacResource("clusterrolebindings")},
	}
	return info, nil
}

// installNatives installs the groups that are chosen, all if none is. The core
// group is always there: every cluster has namespaces.
func (s *Server) installNatives(g generic.RESTOptionsGetter) error {
	chosen := map[string]bool{}
	for _, name := range s.config.Groups {
		chosen[name] = true
	}
	for _, gr := range planned {
		s.own[gr] = true
	}
	every := len(chosen) == 0
	var infos []*genericapiserver.APIGroupInfo
	for _, group := range s.nativeGroups(g) {
		if !every && !chosen[group.name] && group.name != "core" {
			continue
		}
		delete(chosen, group.name)
		info, err := group.build()
		if err != nil {
			return fmt.Errorf("API group %s: %w", group.name, err)
		}
		info.PrioritizedVersions = slices.DeleteFunc(slices.Clone(info.PrioritizedVersions), func(gv schema.GroupVersion) bool {
			return len(info.VersionedResourcesStorageMap[gv.Version]) == 0
		})
		kinds, err := kindsOf(&info)
		if err != nil {
			return fmt.Errorf("API group %s: %w", group.name, err)
		}
		s.natives = append(s.natives, kinds...)
		if err := s.reserve(&info); err != nil {
			return fmt.Errorf("API group %s: %w", group.name, err)
		}
		if group.name == "core" {
			if err := s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
				return err
			}
			s.models = info.StaticOpenAPISpec
			continue
		}
		infos = append(infos, &info)
	}
	for name := range chosen {
		return fmt.Errorf("there is no built-in API group %q", name)
	}
	return s.generic.InstallAPIGroups(infos...)
}
