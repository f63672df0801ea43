package discovery

import (
	"cmp"
	"context"
	"maps"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
)

// resources are the custom resources of one group and version, ordered by name, in both
// forms of discovery.
type resources struct {
	listed     []metav1.APIResource
	aggregated []apidiscoveryv2.APIResourceDiscovery
}

// at returns the path of a group and version, without a leading slash.
func at(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

// contentsByVersion returns the contents of a shape by group and version, ordered by
// name. It leaves out resources that are native.
func contentsByVersion(s *catalog.Shape, natives []apidiscoveryv2.APIGroupDiscovery) map[schema.GroupVersion][]*catalog.Content {
	native := map[schema.GroupVersionResource]bool{}
	for _, g := range natives {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				native[schema.GroupVersionResource{Group: g.Name, Version: v.Version, Resource: r.Resource}] = true
			}
		}
	}
	by := map[schema.GroupVersion][]*catalog.Content{}
	for _, r := range s.All() {
		for _, v := range r.Content.Definition.Spec.Versions {
			resource := r.Content.GroupResource().WithVersion(v.Name)
			if v.Served && !native[resource] {
				by[resource.GroupVersion()] = append(by[resource.GroupVersion()], r.Content)
			}
		}
	}
	for _, contents := range by {
		slices.SortFunc(contents, func(a, b *catalog.Content) int {
			return cmp.Compare(a.GroupResource().Resource, b.GroupResource().Resource)
		})
	}
	return by
}

// resourcesOf describes contents as they are served in one group and version.
func (d *Discovery) resourcesOf(ctx context.Context, gv schema.GroupVersion, contents []*catalog.Content) (resources, error) {
	var out resources
	for _, c := range contents {
		if c.Native() {
			one, err := d.describeOffered(ctx, gv, c)
			if err != nil {
				return out, err
			}
			out = out.and(one)
			continue
		}
		crd := c.Definition
		sub, err := apihelpers.GetSubresourcesForVersion(crd, gv.Version)
		if err != nil {
			return out, err
		}
		if sub == nil {
			sub = &apiextensionsv1.CustomResourceSubresources{}
		}
		one := resources{listing(crd, sub), []apidiscoveryv2.APIResourceDiscovery{describe(gv, crd, sub)}}
		if can := storageVerbs(c); can != nil {
			one = can.restrict(gv.Group, one)
		}
		out = out.and(one)
	}
	return out, nil
}

func subresourceVerbs() metav1.Verbs { return metav1.Verbs{"get", "patch", "update"} }

func listing(crd *apiextensionsv1.CustomResourceDefinition, sub *apiextensionsv1.CustomResourceSubresources) []metav1.APIResource {
	names, namespaced := crd.Status.AcceptedNames, crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	out := []metav1.APIResource{{
		Name: names.Plural, SingularName: names.Singular, Namespaced: namespaced, Kind: names.Kind,
		Verbs: verbs(crd), ShortNames: names.ShortNames, Categories: names.Categories,
		StorageVersionHash: storageVersionHash(crd),
	}}
	if sub.Status != nil {
		out = append(out, metav1.APIResource{
			Name: names.Plural + "/status", Namespaced: namespaced, Kind: names.Kind, Verbs: subresourceVerbs(),
		})
	}
	if sub.Scale != nil {
		out = append(out, metav1.APIResource{
			Group: autoscalingv1.GroupName, Version: "v1", Kind: "Scale",
			Name: names.Plural + "/scale", Namespaced: namespaced, Verbs: subresourceVerbs(),
		})
	}
	return out
}

func storageVersionHash(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Served && v.Storage {
			return discovery.StorageVersionHash(crd.Spec.Group, v.Name, crd.Spec.Names.Kind)
		}
	}
	return ""
}

func describe(gv schema.GroupVersion, crd *apiextensionsv1.CustomResourceDefinition, sub *apiextensionsv1.CustomResourceSubresources) apidiscoveryv2.APIResourceDiscovery {
	names := crd.Status.AcceptedNames
	kind := &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: names.Kind}
	out := apidiscoveryv2.APIResourceDiscovery{
		Resource: names.Plural, SingularResource: names.Singular, Scope: apidiscoveryv2.ScopeCluster, ResponseKind: kind,
		Verbs: verbs(crd), ShortNames: names.ShortNames, Categories: names.Categories,
	}
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		out.Scope = apidiscoveryv2.ScopeNamespace
	}
	if sub.Status != nil {
		out.Subresources = append(out.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: "status", ResponseKind: kind, Verbs: subresourceVerbs(),
		})
	}
	if sub.Scale != nil {
		out.Subresources = append(out.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: "scale", Verbs: subresourceVerbs(),
			ResponseKind: &metav1.GroupVersionKind{Group: autoscalingv1.GroupName, Version: "v1", Kind: "Scale"},
		})
	}
	return out
}

// mergeGroups returns the native groups with customs added. It does not change its
// arguments. Native groups come first, in their order, because a client that finds a
// short name in two groups takes the first. Other groups follow by name. Versions of a
// group are in the order of Kubernetes, v1 before v1beta1.
func mergeGroups(natives []apidiscoveryv2.APIGroupDiscovery, customs map[schema.GroupVersion]resources) []apidiscoveryv2.APIGroupDiscovery {
	added := map[string][]apidiscoveryv2.APIVersionDiscovery{}
	for gv, r := range customs {
		added[gv.Group] = append(added[gv.Group], apidiscoveryv2.APIVersionDiscovery{
			Version: gv.Version, Resources: r.aggregated, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		})
	}
	out := make([]apidiscoveryv2.APIGroupDiscovery, 0, len(natives)+len(added))
	for _, g := range natives {
		if versions, shared := added[g.Name]; shared {
			g.Versions = mergeVersions(g.Versions, versions)
			delete(added, g.Name)
		}
		out = append(out, g)
	}
	for _, name := range slices.Sorted(maps.Keys(added)) {
		g := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
		g.Versions = mergeVersions(nil, added[name])
		out = append(out, g)
	}
	return out
}

func mergeVersions(natives, customs []apidiscoveryv2.APIVersionDiscovery) []apidiscoveryv2.APIVersionDiscovery {
	out := slices.Clone(natives)
	for _, v := range customs {
		i := slices.IndexFunc(out, func(n apidiscoveryv2.APIVersionDiscovery) bool { return n.Version == v.Version })
		if i < 0 {
			out = append(out, v)
			continue
		}
		merged := slices.Concat(out[i].Resources, v.Resources)
		slices.SortFunc(merged, func(a, b apidiscoveryv2.APIResourceDiscovery) int { return cmp.Compare(a.Resource, b.Resource) })
		out[i].Resources = merged
	}
	slices.SortStableFunc(out, func(a, b apidiscoveryv2.APIVersionDiscovery) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	return out
}

// groupOf returns a group in the form of unaggregated discovery. The first version is
// the preferred one.
func groupOf(g apidiscoveryv2.APIGroupDiscovery) metav1.APIGroup {
	out := metav1.APIGroup{Name: g.Name}
	for _, v := range g.Versions {
		gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v.Version})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

// describeSubresources adds the subresources to the resources of a group and version.
func describeSubresources(all serve.Subresources, gv schema.GroupVersion, to resources) resources {
	for _, s := range all {
		if s.Kind.GroupVersion() != gv || s.Resource.Group != gv.Group {
			continue
		}
		kind, verbs := metav1.GroupVersionKind(s.Kind), metav1.Verbs{"get"}
		if i := slices.IndexFunc(to.listed, func(r metav1.APIResource) bool { return r.Name == s.Resource.Resource }); i >= 0 {
			to.listed = slices.Insert(to.listed, i+1, metav1.APIResource{
				Name: s.Resource.Resource + "/" + s.Name, Namespaced: to.listed[i].Namespaced, Kind: kind.Kind, Verbs: verbs,
			})
		}
		if i := slices.IndexFunc(to.aggregated, func(r apidiscoveryv2.APIResourceDiscovery) bool { return r.Resource == s.Resource.Resource }); i >= 0 {
			to.aggregated[i].Subresources = append(to.aggregated[i].Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: s.Name, ResponseKind: &kind, Verbs: verbs})
		}
	}
	return to
}
