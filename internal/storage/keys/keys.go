// Package keys builds and parses the keys of etcd. No other package does: a key made
// elsewhere could reach the objects of another tenant.
//
// Every key has the same shape, so that the cluster is always the same segment:
//
//	/<prefix>/<root>/<group|core>/<resource>/<identity|->/<cluster>/[<namespace>/]<name>
//
// The functions of this package work below the prefix, which is an option of the store.
package keys

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// A Root is the first segment of a key: it says who defines the resource. Roots are
// disjoint, so that a tenant's group and resource never meet the server's own.
type Root string

const (
	Native Root = "n" // kinds compiled into the server
	Custom Root = "c" // kinds served from a schema
	System Root = "s" // the server's own bookkeeping, never served
)

// none stands in a key for an empty identity, and coreGroup for an empty group.
// Neither is a valid value: the group of a definition has a dot.
const (
	none      = "-"
	coreGroup = "core"
)

// A Resource is a contiguous range of keys: one resource in all clusters.
type Resource struct {
	Root            Root
	Group, Resource string
	// Identity is the identity hash of the export that the resource comes from: it
	// distinguishes resources of equal names. It is empty for resources of no export.
	Identity string
}

// NativeResource returns the resource of a kind compiled into the server.
func NativeResource(gr schema.GroupResource) Resource {
	return Resource{Root: Native, Group: gr.Group, Resource: gr.Resource}
}

// CustomResource returns the resource of a kind served from a schema.
func CustomResource(gr schema.GroupResource, identity string) Resource {
	return Resource{Root: Custom, Group: gr.Group, Resource: gr.Resource, Identity: identity}
}

// GroupResource returns the group and the name of the resource.
func (r Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// Prefix returns the range of the resource, without the slash that ends it.
func (r Resource) Prefix() string {
	group, identity := r.segments()
	return "/" + string(r.Root) + "/" + group + "/" + r.Resource + "/" + identity
}

// KindPrefix returns the range of the resource with any identity, without the slash
// that ends it.
func (r Resource) KindPrefix() string {
	group, _ := r.segments()
	return "/" + string(r.Root) + "/" + group + "/" + r.Resource
}

// segments returns group and identity as they are in a key.
func (r Resource) segments() (group, identity string) {
	return cmp.Or(r.Group, coreGroup), cmp.Or(r.Identity, none)
}

// A Key says where one object is stored. Namespace is empty for an object without one.
type Key struct {
	Resource
	Cluster         cluster.Name
	Namespace, Name string
}

// Key returns the key of an object of the resource. It does not check it: see [Key.Validate].
func (r Resource) Key(c cluster.Name, namespace, name string) Key {
	return Key{Resource: r, Cluster: c, Namespace: namespace, Name: name}
}

// SystemKey returns the key of a note of the server about a cluster.
func SystemKey(c cluster.Name, resource, name string) Key {
	return Key{Resource: Resource{Root: System, Resource: resource}, Cluster: c, Name: name}
}

// Fence returns the key of the fence of a cluster.
func Fence(c cluster.Name) Key { return SystemKey(c, "fences", "fence") }

// FenceOf returns the cluster whose fence is stored at k, and whether k is the key of a fence.
func FenceOf(k Key) (cluster.Name, bool) {
	return k.Cluster, k.Root == System && k.Resource.Resource == "fences" && k.Group == ""
}

// Note returns the path of a note of the server about all clusters. It does not parse as
// a key.
func Note(name string) string { return "/" + string(System) + "/" + name }

// String returns the key for messages: resource, cluster and name.
func (k Key) String() string {
	return fmt.Sprintf("%s %s in logical cluster %s", k.kind(), k.object(), k.Cluster)
}

func (k Key) kind() string {
	if k.Group == "" {
		return k.Resource.Resource
	}
	return k.Resource.Resource + "." + k.Group
}

func (k Key) object() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Path returns the key as it is in etcd, below the prefix of the store. It does not
// check the key: see [Key.Validate].
func (k Key) Path() string {
	group, identity := k.segments()
	if k.Namespace == "" {
		return "/" + string(k.Root) + "/" + group + "/" + k.Resource.Resource + "/" + identity + "/" + string(k.Cluster) + "/" + k.Name
	}
	return "/" + string(k.Root) + "/" + group + "/" + k.Resource.Resource + "/" + identity + "/" + string(k.Cluster) + "/" + k.Namespace + "/" + k.Name
}

// Parse is the inverse of [Key.Path]. It reports whether path is a key.
func Parse(path string) (Key, bool) {
	r, tail, ok := Split(path)
	if !ok {
		return Key{}, false
	}
	k := Key{Resource: r}
	k.Cluster, k.Namespace, k.Name, ok = SplitTail(tail)
	return k, ok
}

// Validate returns an error for a key that would parse as another one.
func (k Key) Validate() error {
	if back, ok := Parse(k.Path()); !ok || back != k {
		return fmt.Errorf("malformed key: %s", k)
	}
	return nil
}

// Split splits the path of a key, or of a range of a resource, into the resource and the
// tail. It does not check the tail.
func Split(path string) (r Resource, tail string, ok bool) {
	var root, rest string
	if rest, ok = strings.CutPrefix(path, "/"); !ok {
		return Resource{}, "", false
	}
	for _, segment := range []*string{&root, &r.Group, &r.Resource, &r.Identity} {
		if *segment, rest, ok = strings.Cut(rest, "/"); !ok {
			return Resource{}, "", false
		}
	}
	r.Root = Root(root)
	whole := r.Group != "" && r.Resource != "" && r.Identity != ""
	if r.Group == coreGroup {
		r.Group = ""
	}
	if r.Identity == none {
		r.Identity = ""
	}
	switch r.Root {
	case Native, Custom, System:
		return r, rest, whole
	default:
		return Resource{}, "", false
	}
}

// Tail returns the part of a key that identifies the object within its resource.
func (k Key) Tail() string { return Tail(k.Cluster, k.Namespace, k.Name) }

// Tail returns the tail of the key of an object. The namespace may be empty.
func Tail(c cluster.Name, namespace, name string) string {
	if namespace == "" {
		return string(c) + "/" + name
	}
	return string(c) + "/" + namespace + "/" + name
}

// SplitTail is the inverse of [Tail]. It reports whether tail is one.
func SplitTail(tail string) (c cluster.Name, namespace, name string, ok bool) {
	first, rest, ok := strings.Cut(tail, "/")
	if !ok || first == "" || rest == "" {
		return "", "", "", false
	}
	namespace, name, namespaced := strings.Cut(rest, "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	if name == "" || namespaced && namespace == "" || strings.Contains(name, "/") {
		return "", "", "", false
	}
	return cluster.Name(first), namespace, name, true
}
