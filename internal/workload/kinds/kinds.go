// Package kinds has the kinds of workloads, with the registries of Kubernetes: Deployments, Services
// and what goes with them. Logical clusters have them where an APIBinding binds them.
package kinds

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // adds its types to the scheme
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	endpointsstore "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	claimsstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"

	"github.com/unforked/kcp"
)

// Offers returns the kinds. pods is the storage of pods and their subresources, by name; if it is
// nil, pods are not offered.
func Offers(pods map[string]rest.Storage) []kcp.Offer {
	core := []kind{
		{names: names("endpoints", "Endpoints", "ep", "")},
		{names: names("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", ""), status: true},
		{names: names("services", "Service", "svc", "all"), status: true},
	}
	if pods != nil {
		core = append(core, kind{names: names("pods", "Pod", "po", "all")})
	}
	return []kcp.Offer{
		offer(appsv1.GroupName, appsrest.StorageProvider{}, appsKinds()...),
		offer(autoscalingv1.GroupName, autoscalingrest.RESTStorageProvider{}, kind{
			names: names("horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa", "all"), status: true,
			versions: []string{autoscalingv2.SchemeGroupVersion.Version, autoscalingv1.SchemeGroupVersion.Version},
		}),
		offer(batchv1.GroupName, batchrest.RESTStorageProvider{},
			kind{names: names("jobs", "Job", "", "all"), status: true},
			kind{names: names("cronjobs", "CronJob", "cj", "all"), status: true},
		),
		offer(discoveryv1.GroupName, discoveryrest.StorageProvider{}, kind{names: names("endpointslices", "EndpointSlice", "", "")}),
		offer(networkingv1.GroupName, networkingrest.RESTStorageProvider{},
			kind{names: names("ingresses", "Ingress", "ing", ""), status: true},
			kind{names: names("ingressclasses", "IngressClass", "", ""), clusterScoped: true},
			kind{names: names("networkpolicies", "NetworkPolicy", "netpol", "")},
		),
		offer(policyv1.GroupName, policyrest.RESTStorageProvider{}, kind{names: names("poddisruptionbudgets", "PodDisruptionBudget", "pdb", ""), status: true}),
		offer(corev1.GroupName, coreGroup{pods}, core...),
	}
}

func appsKinds() []kind {
	return []kind{
		{names: names("daemonsets", "DaemonSet", "ds", "all"), status: true},
		{names: names("deployments", "Deployment", "deploy", "all"), status: true, scale: true},
		{names: names("replicasets", "ReplicaSet", "rs", "all"), status: true, scale: true},
		{names: names("statefulsets", "StatefulSet", "sts", "all"), status: true, scale: true},
	}
}

// A kind is a kind of a group.
type kind struct {
	names         apiextensionsv1.CustomResourceDefinitionNames
	versions      []string // the first is that of the storage; v1 if empty
	clusterScoped bool
	status, scale bool
}

// names returns the names of a kind, which may have a short name and a category.
func names(plural, kind, short, category string) apiextensionsv1.CustomResourceDefinitionNames {
	n := apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind}
	if short != "" {
		n.ShortNames = []string{short}
	}
	if category != "" {
		n.Categories = []string{category}
	}
	return n
}

// A provider builds the registries of a group, as those of Kubernetes do.
type provider interface {
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// offer returns the offer of kinds of a group.
func offer(group string, from provider, kinds ...kind) kcp.Offer {
	o := kcp.Offer{}
	o.Name = group
	if group == "" {
		o.Name = "core"
	}
	enabled := serverstorage.NewResourceConfig()
	for _, k := range kinds {
		if len(k.versions) == 0 {
			k.versions = []string{"v1"}
		}
		for _, v := range k.versions {
			enabled.EnableResources(schema.GroupVersionResource{Group: group, Version: v, Resource: k.names.Plural})
		}
		o.Resources = append(o.Resources, kcp.OfferedKind{
			GroupResource: schema.GroupResource{Group: group, Resource: k.names.Plural}, Names: k.names,
			ClusterScoped: k.clusterScoped, Versions: k.versions, Status: k.status, Scale: k.scale,
		})
	}
	o.Build = func(g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
		return from.NewRESTStorage(enabled, g)
	}
	return o
}

// coreGroup provides the registries of the core group, and further storages.
type coreGroup struct{ further map[string]rest.Storage }

// NewRESTStorage implements provider.
func (c coreGroup) NewRESTStorage(_ serverstorage.APIResourceConfigSource, g generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(corev1.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	endpoints, err := endpointsstore.NewREST(g)
	if err != nil {
		return info, err
	}
	claims, claimStatus, err := claimsstore.NewREST(g)
	if err != nil {
		return info, err
	}
	services, serviceStatus, err := newServices(g)
	if err != nil {
		return info, err
	}
	all := map[string]rest.Storage{
		"endpoints": endpoints, "persistentvolumeclaims": claims, "persistentvolumeclaims/status": claimStatus,
		"services": services, "services/status": serviceStatus,
	}
	maps.Copy(all, c.further)
	info.VersionedResourcesStorageMap[corev1.SchemeGroupVersion.Version] = all
	return info, nil
}
