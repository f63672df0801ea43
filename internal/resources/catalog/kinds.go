package catalog

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Kind is one version of a resource that a cluster serves.
type Kind struct {
	schema.GroupVersionKind
	Plural     string
	Namespaced bool
	Stored     keys.Resource
}

// GroupVersionResource returns the resource that serves the kind.
func (k Kind) GroupVersionResource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Plural)
}

// Kinds maps kinds to where their objects are stored, and back, for each cluster.
// It holds nothing per cluster.
type Kinds struct {
	natives map[schema.GroupVersionKind]Kind
	stored  map[keys.Resource]Kind
	shapeOf func(cluster.Name) *Shape
}

// NewKinds returns the kinds of natives and of each cluster's shape. The preferred
// version of a native resource must come first.
func NewKinds(natives []Kind, shapeOf func(cluster.Name) *Shape) *Kinds {
	k := &Kinds{natives: map[schema.GroupVersionKind]Kind{}, stored: map[keys.Resource]Kind{}, shapeOf: shapeOf}
	for _, n := range natives {
		k.natives[n.GroupVersionKind] = n
		if _, ok := k.stored[n.Stored]; !ok {
			k.stored[n.Stored] = n
		}
	}
	return k
}

// Find returns the kind that cluster c stores and serves as gvk, in exactly this version.
func (k *Kinds) Find(c cluster.Name, gvk schema.GroupVersionKind) (Kind, bool) {
	if native, ok := k.natives[gvk]; ok {
		return native, true
	}
	for _, s := range k.shapeOf(c).All() {
		d := s.Content.Definition
		if s.Content.storage != Stored || d.Spec.Group != gvk.Group || d.Status.AcceptedNames.Kind != gvk.Kind {
			continue
		}
		for _, v := range d.Spec.Versions {
			if v.Name == gvk.Version && v.Served {
				return s.kind(v.Name), true
			}
		}
	}
	return Kind{}, false
}

// StoredAs returns the kind that cluster c serves for objects stored as r. The version
// is the storage version if that is served, else the first served one.
func (k *Kinds) StoredAs(c cluster.Name, r keys.Resource) (Kind, bool) {
	if r.Root == keys.Native {
		native, ok := k.stored[r]
		return native, ok
	}
	s, ok := k.shapeOf(c).Find(schema.GroupResource{Group: r.Group, Resource: r.Resource})
	if !ok || s.Identity != r.Identity || s.Content.storage != Stored {
		return Kind{}, false
	}
	version := ""
	for _, v := range s.Content.Definition.Spec.Versions {
		if v.Served && (version == "" || v.Storage) {
			version = v.Name
		}
	}
	return s.kind(version), version != ""
}

func (s Served) kind(version string) Kind {
	d, gr := s.Content.Definition, s.Content.GroupResource()
	return Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: gr.Group, Version: version, Kind: d.Status.AcceptedNames.Kind},
		Plural:           gr.Resource,
		Namespaced:       d.Spec.Scope == "Namespaced",
		Stored:           keys.CustomResource(gr, s.Identity),
	}
}
