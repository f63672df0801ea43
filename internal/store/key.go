package store

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

// A Root is the first segment of a key: who defines what is stored under it.
// Roots are disjoint, so that a tenant's group and resource can never meet the
// server's own.
type Root string

const (
	Native Root = "n" // kinds compiled into the server
	Custom Root = "c" // kinds served from a schema
	System Root = "s" // the server's own bookkeeping, never served
)

// none stands in a key for an identity that is empty, and coreGroup for an empty group.
// Neither is one: a group that a definition names has a dot.
const (
	none      = "-"
	coreGroup = "core"
)

// A Resource is a contiguous range of keys: one resource, in every cluster.
type Resource struct {
	Root            Root
	Group, Resource string
	// Identity tells apart resources of one name that come from different
	// exports; empty for those that come from none.
	Identity string
}

// GroupResource returns the group and the name of the resource.
func (r Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// A Key says where one object is stored.
type Key struct {
	Resource
	Cluster         cluster.Name
	Namespace, Name string
}

// String returns the key as it stands in messages: resource, cluster and name.
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

// Key building is private to this package: a key made elsewhere would be a hole
// in the wall between tenants. Every key has the same shape,
//
//	/<prefix>/<root>/<group|core>/<resource>/<identity|->/<cluster>/[<namespace>/]<name>
//
// so that the cluster is always found at the same segment.

// kindPrefix is the range of a resource with any identity.
func (r Resource) kindPrefix() string {
	group, _ := r.segments()
	return "/" + string(r.Root) + "/" + group + "/" + r.Resource
}

// segments returns how group and identity stand in a key.
func (r Resource) segments() (group, identity string) {
	return cmp.Or(r.Group, coreGroup), cmp.Or(r.Identity, none)
}

// prefix is the range of a resource, without the slash that ends it.
func (r Resource) prefix() string {
	group, identity := r.segments()
	return "/" + string(r.Root) + "/" + group + "/" + r.Resource + "/" + identity
}

// tail is the part of a key that says which object of the resource it is.
func (k Key) tail() string { return tailOf(k.Cluster, k.Namespace, k.Name) }

func tailOf(c cluster.Name, namespace, name string) string {
	if namespace == "" {
		return string(c) + "/" + name
	}
	return string(c) + "/" + namespace + "/" + name
}

// splitTail is the inverse of [tailOf].
func splitTail(tail string) (c cluster.Name, namespace, name string, ok bool) {
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

// full is the key in etcd below the etcd prefix.
func (k Key) full() string {
	group, identity := k.segments()
	if k.Namespace == "" {
		return "/" + string(k.Root) + "/" + group + "/" + k.Resource.Resource + "/" + identity + "/" + string(k.Cluster) + "/" + k.Name
	}
	return "/" + string(k.Root) + "/" + group + "/" + k.Resource.Resource + "/" + identity + "/" + string(k.Cluster) + "/" + k.Namespace + "/" + k.Name
}

// cutHead splits a key below the etcd prefix into its resource and its tail.
func cutHead(s string) (r Resource, tail string, ok bool) {
	var root, rest string
	if rest, ok = strings.CutPrefix(s, "/"); !ok {
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

// parseKey is the inverse of [Key.full].
func parseKey(s string) (Key, bool) {
	r, tail, ok := cutHead(s)
	if !ok {
		return Key{}, false
	}
	k := Key{Resource: r}
	k.Cluster, k.Namespace, k.Name, ok = splitTail(tail)
	return k, ok
}

// check refuses a key that would be read back as another.
func (k Key) check() error {
	if back, ok := parseKey(k.full()); !ok || back != k {
		return fmt.Errorf("malformed key: %s", k)
	}
	return nil
}
