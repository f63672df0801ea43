package discovery

import (
	"maps"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// Verbs are the verbs of a view, by resource or, as in "widgets/status", by subresource.
type Verbs map[schema.GroupResource]metav1.Verbs

// WithSubresources returns a resource and the subresources that objects of a view may have.
func WithSubresources(gr schema.GroupResource) []schema.GroupResource {
	return []schema.GroupResource{gr, {Group: gr.Group, Resource: gr.Resource + "/status"}, {Group: gr.Group, Resource: gr.Resource + "/scale"}}
}

// verbs returns the verbs of a definition's objects. A terminating definition has no
// verbs that write objects, except deletion.
func verbs(crd *apiextensionsv1.CustomResourceDefinition) metav1.Verbs {
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		return metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	return metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
}

// storageVerbs returns what clients can do with the objects of a content, nil for everything.
func storageVerbs(c *catalog.Content) Verbs {
	if c.Storage() != catalog.Cached {
		return nil
	}
	return Verbs{c.GroupResource(): {"get", "list", "watch"}}
}

// of returns those of some verbs that a resource has in the view.
func (v Verbs) of(group, resource string, some metav1.Verbs) metav1.Verbs {
	can := v[schema.GroupResource{Group: group, Resource: resource}]
	if slices.Contains(can, rbacv1.VerbAll) {
		return some
	}
	return slices.DeleteFunc(slices.Clone(some), func(verb string) bool { return !slices.Contains(can, verb) })
}

// restrict returns the resources of a group that have verbs in v, with these verbs.
func (v Verbs) restrict(group string, all resources) resources {
	var out resources
	for _, r := range all.listed {
		if r.Verbs = v.of(group, r.Name, r.Verbs); len(r.Verbs) > 0 {
			out.listed = append(out.listed, r)
		}
	}
	for _, r := range all.aggregated {
		if r.Verbs = v.of(group, r.Resource, r.Verbs); len(r.Verbs) > 0 {
			r.Subresources = slices.Clone(r.Subresources)
			for i := range r.Subresources {
				r.Subresources[i].Verbs = v.of(group, r.Resource+"/"+r.Subresources[i].Subresource, r.Subresources[i].Verbs)
			}
			r.Subresources = slices.DeleteFunc(r.Subresources, func(s apidiscoveryv2.APISubresourceDiscovery) bool { return len(s.Verbs) == 0 })
			out.aggregated = append(out.aggregated, r)
		}
	}
	return out
}

// trim removes the operations of a group whose verbs are not in v.
func (v Verbs) trim(group string, paths *spec3.Paths) {
	for path, item := range paths.Paths {
		if !keep(v.methods(group, path), operations[**spec3.Operation]{&item.Get, &item.Post, &item.Put, &item.Patch, &item.Delete}) {
			delete(paths.Paths, path)
		}
	}
}

// trimOf is [Verbs.trim] for the paths of one resource.
func (v Verbs) trimOf(gr schema.GroupResource, paths *spec3.Paths) {
	own := &spec3.Paths{Paths: map[string]*spec3.Path{}}
	for path, item := range paths.Paths {
		before, _, _ := strings.Cut(path, "/{name}")
		if before[strings.LastIndexByte(before, '/')+1:] == gr.Resource {
			own.Paths[path] = item
			delete(paths.Paths, path)
		}
	}
	v.trim(gr.Group, own)
	maps.Copy(paths.Paths, own.Paths)
}

// trimV2 is [Verbs.trim] for OpenAPI version 2.
func (v Verbs) trimV2(group string, paths map[string]spec.PathItem) {
	for path, item := range paths {
		if !keep(v.methods(group, path), operations[**spec.Operation]{&item.Get, &item.Post, &item.Put, &item.Patch, &item.Delete}) {
			delete(paths, path)
			continue
		}
		paths[path] = item
	}
}

// operations has a value for each method of an OpenAPI path.
type operations[T any] struct{ get, post, put, patch, delete T }

// all returns the values in a fixed order.
func (o operations[T]) all() []T { return []T{o.get, o.post, o.put, o.patch, o.delete} }

// keep removes the operations that a path may not have, and reports whether it has some left.
func keep[T any](may operations[bool], of operations[**T]) (some bool) {
	allowed := may.all()
	for i, operation := range of.all() {
		if !allowed[i] {
			*operation = nil
		}
		some = some || *operation != nil
	}
	return some
}

// methods reports which methods the OpenAPI path of a resource in a group may have.
func (v Verbs) methods(group, path string) operations[bool] {
	before, after, named := strings.Cut(path, "/{name}")
	resource := before[strings.LastIndexByte(before, '/')+1:] + after
	can := func(verb string) bool { return len(v.of(group, resource, metav1.Verbs{verb})) > 0 }
	if named {
		return operations[bool]{get: can("get"), put: can("update"), patch: can("patch"), delete: can("delete")}
	}
	return operations[bool]{get: can("list"), post: can("create"), put: can("update"), patch: can("patch"), delete: can("deletecollection")}
}
