// Package native installs the built-in API groups with upstream's registries, and defines the
// custom resources that every logical cluster has.
package native

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
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
	clientrest "k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install" // adds its types to the scheme
	"k8s.io/kubernetes/pkg/apis/authentication"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
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

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/auth/lookup"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/storage/watchcache"
	"github.com/unforked/kcp/internal/tenancy"
)

// uncached are the resources without a watch cache. Their objects expire with etcd leases.
var uncached = []schema.GroupResource{{Resource: "events"}}

// encodings returns how kinds of Kubernetes are stored: in upstream's storage versions for the
// effective version.
func encodings(version basecompatibility.EffectiveVersion, mediaType string) *serverstorage.DefaultStorageFactory {
	factory := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(version)
	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(legacyscheme.Scheme, version)
	for _, override := range factory.ResourceEncodingOverrides {
		encoding.SetResourceEncoding(override.GroupResource(), override.GroupVersion(), schema.GroupVersion{Group: override.Group, Version: runtime.APIVersionInternal})
	}
	config := *storagebackend.NewDefaultConfig("/", nil)
	return serverstorage.NewDefaultStorageFactory(config, mediaType, legacyscheme.Codecs, encoding, serverstorage.NewResourceConfig(), nil)
}

// storage returns the storage of built-in kinds.
func storage(c *watchcache.Caches, version basecompatibility.EffectiveVersion, share func(runtime.Object)) *watchcache.Getter {
	native := encodings(version, runtime.ContentTypeProtobuf)
	return c.Natives(func(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error) {
		if gr.Group == apiextensions.GroupName { // it has its own scheme
			return storagebackend.NewDefaultConfig("/", apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)).ForResource(gr), nil
		}
		return native.NewConfig(gr, example)
	}, uncached...).Share(share)
}

// Groups holds the options and dependencies of the built-in API groups. All fields but Chosen, Further
// and Storage are required.
type Groups struct {
	Caches      *watchcache.Caches
	Definitions *define.Definitions
	Version     basecompatibility.EffectiveVersion
	// RootCA has the certificates that verify the server. Every namespace has a copy.
	RootCA        *tenancy.RootCA
	Accounts      *authn.ServiceAccounts
	Authenticator *authn.Authenticators
	Authorizer    *authz.Authorizer
	// Loopback configures clients of this server.
	Loopback *clientrest.Config
	// MaxTokenLife is the maximum lifetime of requested service account tokens.
	MaxTokenLife time.Duration
	// ExtendTokens extends tokens of pods to MaxExtendedTokenLife.
	ExtendTokens         bool
	MaxExtendedTokenLife time.Duration
	// EventTTL is how long events are kept.
	EventTTL time.Duration
	// Chosen names the groups to install; all if it is empty. The core group is always
	// installed: every cluster has namespaces.
	Chosen []string
	// Settle waits until all that this process has written is in force.
	Settle func(context.Context)
	// Kind returns a kind that a cluster serves.
	Kind func(cluster.Name, schema.GroupVersionKind) (catalog.Kind, bool)
	// Further are API groups to install besides the built-in ones.
	Further []Group
	// Storage may replace the storage of each resource, one after the other.
	Storage []func(schema.GroupVersionResource, rest.Storage) rest.Storage
}

// Installed describes the installed groups.
type Installed struct {
	// Kinds are the built-in kinds whose objects can be deleted.
	Kinds []catalog.Kind
	// Own are the built-in resources.
	Own map[schema.GroupResource]bool
	// Models are the OpenAPI models of the core group.
	Models map[string]*spec.Schema
	// Further are those of the other groups.
	Further map[string]*spec.Schema
}

// A Group is an API group that registries of Kubernetes serve.
type Group struct {
	// Name is the name of the group, "core" for the group without a name.
	Name string
	// Build returns the registries of the group, with storage from g. The types are in
	// [legacyscheme.Scheme], and are stored in the versions that Kubernetes stores them in.
	Build func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// all returns the groups, in the order of installation.
func (s Groups) all() []Group {
	enabled := serverstorage.NewResourceConfig()
	enabled.EnableVersions(corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion)
	return append([]Group{
		{"core", func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
			return (&corerest.GenericConfig{
				EventTTL: s.EventTTL, ServiceAccountIssuer: s.Accounts, APIAudiences: s.Authenticator.Audiences,
				ServiceAccountMaxExpiration: s.MaxTokenLife, LoopbackClientConfig: s.Loopback,
				ExtendExpiration: s.ExtendTokens, MaxExtendedExpiration: s.MaxExtendedTokenLife,
			}).NewRESTStorage(enabled, g)
		}},
		{"authentication.k8s.io", s.authenticationGroup},
		{"authorization.k8s.io", func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
			return authorizationrest.RESTStorageProvider{Authorizer: s.Authorizer, RuleResolver: s.Authorizer}.NewRESTStorage(kubernetesDefaults(), g)
		}},
		{"certificates.k8s.io", func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
			return certificatesrest.RESTStorageProvider{Authorizer: s.Authorizer}.NewRESTStorage(kubernetesDefaults(), g)
		}},
		{"coordination.k8s.io", func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
			return coordinationrest.RESTStorageProvider{}.NewRESTStorage(kubernetesDefaults(), g)
		}},
		{"events.k8s.io", func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
			return eventsrest.RESTStorageProvider{TTL: s.EventTTL}.NewRESTStorage(enabled, g)
		}},
		{"rbac.authorization.k8s.io", s.rbacGroup},
		{admissionregistrationv1.GroupName, s.registrationGroup},
		{"apiextensions.k8s.io", s.Definitions.APIGroup},
	}, s.Further...)
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

// authenticationGroup replaces upstream's group: upstream's token review authenticates
// without the context of the request, and so without the cluster.
func (s Groups) authenticationGroup(generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(authentication.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"tokenreviews":       authn.NewTokenReviews(s.Authenticator),
		"selfsubjectreviews": selfsubjectreview.NewREST(),
	}
	return info, nil
}

// rbacGroup replaces upstream's group: upstream checks escalation against stored roles
// only, but the built-in roles of a cluster are not stored.
func (s Groups) rbacGroup(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
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
	rules := s.Authorizer.Rules()
	info.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"roles":               rolepolicy.NewStorage(roles, s.Authorizer, rules),
		"clusterroles":        granting{clusterrolepolicy.NewStorage(clusterRoles, s.Authorizer, rules), lookup.RBACResource("clusterroles")},
		"rolebindings":        rolebindingpolicy.NewStorage(roleBindings, s.Authorizer, rules),
		"clusterrolebindings": granting{clusterrolebindingpolicy.NewStorage(clusterRoleBindings, s.Authorizer, rules), lookup.RBACResource("clusterrolebindings")},
	}
	return info, nil
}

// Install installs the chosen groups.
func (s Groups) Install(to *genericapiserver.GenericAPIServer) (*Installed, error) {
	left := map[string]bool{}
	for _, name := range s.Chosen {
		left[name] = true
	}
	in := &Installed{Own: map[schema.GroupResource]bool{}}
	every := len(left) == 0
	var infos []*genericapiserver.APIGroupInfo
	from := storage(s.Caches, s.Version, newSharing(s.RootCA, s.Definitions.Share).share)
	installed := map[string]bool{}
	for i, group := range s.all() {
		if further := i >= len(s.all())-len(s.Further); !every && !left[group.Name] && group.Name != "core" && !further {
			continue
		}
		if installed[group.Name] {
			return nil, fmt.Errorf("there are two API groups %q", group.Name)
		}
		installed[group.Name] = true
		delete(left, group.Name)
		info, err := s.install(group, from, in)
		if err != nil {
			return nil, fmt.Errorf("API group %s: %w", group.Name, err)
		}
		if group.Name == "core" {
			if err := to.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, info); err != nil {
				return nil, err
			}
			in.Models = info.StaticOpenAPISpec
			continue
		}
		infos = append(infos, info)
	}
	for name := range left {
		return nil, fmt.Errorf("there is no built-in API group %q", name)
	}
	if err := to.InstallAPIGroups(infos...); err != nil {
		return nil, err
	}
	if len(infos) > 0 {
		in.Further = infos[0].StaticOpenAPISpec
	}
	return in, nil
}

// install builds a group and adds its kinds and resources to in.
func (s Groups) install(g Group, from generic.RESTOptionsGetter, in *Installed) (*genericapiserver.APIGroupInfo, error) {
	info, err := g.Build(from)
	if err != nil {
		return nil, err
	}
	withoutEmpty(&info)
	for version, all := range info.VersionedResourcesStorageMap {
		for resource := range all {
			for _, replace := range s.Storage {
				all[resource] = replace(schema.GroupVersionResource{Group: info.PrioritizedVersions[0].Group, Version: version, Resource: resource}, all[resource])
			}
		}
	}
	kinds, err := kindsOf(&info)
	if err != nil {
		return nil, err
	}
	in.Kinds = append(in.Kinds, kinds...)
	return &info, s.reserve(&info, in.Own)
}

// withoutEmpty removes the versions without resources.
func withoutEmpty(info *genericapiserver.APIGroupInfo) {
	info.PrioritizedVersions = slices.DeleteFunc(slices.Clone(info.PrioritizedVersions), func(gv schema.GroupVersion) bool {
		return len(info.VersionedResourcesStorageMap[gv.Version]) == 0
	})
}
