package native

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/keys"
)

// kindsOf returns the kinds of a built-in group whose objects can be deleted, the preferred
// version first.
func kindsOf(info *genericapiserver.APIGroupInfo) ([]catalog.Kind, error) {
	var kinds []catalog.Kind
	for _, gv := range info.PrioritizedVersions {
		for plural, storage := range info.VersionedResourcesStorageMap[gv.Version] {
			_, deletable := storage.(rest.GracefulDeleter)
			scoper, scoped := storage.(rest.Scoper)
			if !deletable || !scoped || strings.Contains(plural, "/") {
				continue
			}
			gvk, err := endpoints.GetResourceKind(gv, storage, info.Scheme)
			if err != nil {
				return nil, fmt.Errorf("kind of %s: %w", plural, err)
			}
			kinds = append(kinds, catalog.Kind{
				GroupVersionKind: gvk, Plural: plural, Namespaced: scoper.NamespaceScoped(), Stored: storedAs(gv.Group, plural),
			})
		}
	}
	return kinds, nil
}

// storedAs returns the storage resource of a built-in resource. Both API groups of Events
// share one.
func storedAs(group, resource string) keys.Resource {
	if group == "events.k8s.io" {
		group = ""
	}
	return keys.NativeResource(schema.GroupResource{Group: group, Resource: resource})
}

// reserve reserves the names of a built-in group, so that CustomResourceDefinitions cannot
// use them.
func (s Groups) reserve(info *genericapiserver.APIGroupInfo, own map[schema.GroupResource]bool) error {
	for _, gv := range info.PrioritizedVersions {
		for plural, storage := range info.VersionedResourcesStorageMap[gv.Version] {
			own[schema.GroupResource{Group: gv.Group, Resource: plural}] = true
			if strings.Contains(plural, "/") {
				continue
			}
			gvk, err := endpoints.GetResourceKind(gv, storage, info.Scheme)
			if err != nil {
				return fmt.Errorf("kind of %s: %w", plural, err)
			}
			names := apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(gvk.Kind), Kind: gvk.Kind, ListKind: gvk.Kind + "List"}
			if short, ok := storage.(rest.ShortNamesProvider); ok {
				names.ShortNames = short.ShortNames()
			}
			s.Definitions.Reserve(gv.Group, names)
		}
	}
	return nil
}
