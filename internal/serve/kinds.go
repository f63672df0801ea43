package serve

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// A Kind is what a cluster serves of a resource in one version.
type Kind struct {
	schema.GroupVersionKind
	Plural     string
	Namespaced bool
	Stored     store.Resource
}

// GroupVersionResource returns what the kind is asked for as.
func (k Kind) GroupVersionResource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Plural)
}

// Kinds maps kinds to where their objects are stored, and back, for each cluster.
// It holds nothing per cluster.
type Kinds struct {
	natives map[schema.GroupVersionKind]Kind
	stored  map[store.Resource]Kind
	shapeOf func(cluster.Name) *Shape
}

// NewKinds returns the kinds compiled into the server, the preferred version of each
// first, and those of the shape that a cluster has.
func NewKinds(natives []Kind, shapeOf func(cluster.Name) *Shape) *Kinds {
	k := &Kinds{natives: map[schema.GroupVersionKind]Kind{}, stored: map[store.Resource]Kind{}, shapeOf: shapeOf}
	for _, n := range natives {
		k.natives[n.GroupVersionKind] = n
		if _, ok := k.stored[n.Stored]; !ok {
			k.stored[n.Stored] = n
		}
	}
	return k
}

// Find returns how cluster c serves a kind in exactly that version.
func (k *Kinds) Find(c cluster.Name, gvk schema.GroupVersionKind) (Kind, bool) {
	if native, ok := k.natives[gvk]; ok {
		return native, true
	}
	for _, s := range k.shapeOf(c).All() {
		d := s.Content.Definition
		if d.Spec.Group != gvk.Group || d.Status.AcceptedNames.Kind != gvk.Kind {
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

// StoredAs returns how cluster c serves the objects that it stores as a resource, in
// the version that they are stored in if that is served.
func (k *Kinds) StoredAs(c cluster.Name, r store.Resource) (Kind, bool) {
	if r.Root == store.Native {
		native, ok := k.stored[r]
		return native, ok
	}
	s, ok := k.shapeOf(c).Find(schema.GroupResource{Group: r.Group, Resource: r.Resource})
	if !ok || s.Identity != r.Identity {
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
		Stored:           store.CustomResource(gr, s.Identity),
	}
}
