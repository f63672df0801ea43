package pods

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Storage returns the storages of pods and their subresources.
func (p *Pods) Storage() map[string]rest.Storage {
	pods := &store{
		Pods:           p,
		TableConvertor: printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)},
	}
	all := p.streams().Storage()
	all["pods"], all["pods/eviction"], all["pods/ephemeralcontainers"], all["pods/proxy"] = pods, evictions{p}, debuggers{pods}, unserved{}
	return all
}

// WithEvents returns a storage that also serves the events in physical clusters, if the resource is
// events. All others it returns as they are.
func (p *Pods) WithEvents(of schema.GroupVersionResource, s rest.Storage) rest.Storage {
	stored, ok := s.(eventStorage)
	if of.Resource != "events" || of.Group != "" && of.Group != "events.k8s.io" || !ok {
		return s
	}
	return &events{stored, p}
}

// Metrics returns the API group that "kubectl top pods" reads. It has the usage of pods whose physical
// cluster has the Metrics API.
func (p *Pods) Metrics() genericapiserver.APIGroupInfo {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	info := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, runtime.NewParameterCodec(scheme), serializer.NewCodecFactory(scheme))
	info.VersionedResourcesStorageMap[metricsv1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"pods": &usages{pods: p, TableConvertor: rest.NewDefaultTableConvertor(metrics.Resource("pods"))},
	}
	return info
}
