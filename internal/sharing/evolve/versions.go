package evolve

import (
	"cmp"
	"slices"

	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/sharing/bind"
)

// A useKey is a version of a resource.
type useKey struct {
	runtimeschema.GroupResource
	version string
}

// use counts an object that is stored in a version, and has fields that were set in others.
func (w *walk) use(t *target, c bind.Consumer, storedIn string, managed map[string]bool) {
	w.useOf(t, c, storedIn).Stored++
	w.uses[useKey{t.GroupResource, storedIn}].Stored++
	for v := range managed {
		if !t.versions[v] { // a client may have made it up
			continue
		}
		w.useOf(t, c, v).Managed++
		w.uses[useKey{t.GroupResource, v}].Managed++
	}
}

// useOf returns the counts of a version in a consumer. Consumers come one after the other.
func (w *walk) useOf(t *target, c bind.Consumer, v string) *apis.VersionConsumer {
	if w.uses == nil {
		w.uses = map[useKey]*apis.VersionUse{}
	}
	key := useKey{t.GroupResource, v}
	u := w.uses[key]
	if u == nil {
		u = &apis.VersionUse{Group: t.Group, Resource: t.Resource, Version: v, End: t.end(v)}
		w.uses[key] = u
	}
	if n := len(u.Consumers); n == 0 || u.Consumers[n-1].Cluster != string(c.Cluster) {
		u.Consumers = append(u.Consumers, apis.VersionConsumer{Cluster: string(c.Cluster), Path: string(w.PathOf(c.Cluster))})
	}
	return &u.Consumers[len(u.Consumers)-1]
}

// end returns what becomes of a version.
func (t *target) end(v string) apis.VersionEnd {
	if t.next == nil {
		return apis.VersionServed
	}
	switch known, served := t.next.full.Has(v); {
	case served:
		return apis.VersionServed
	case known:
		return apis.VersionNotServed
	}
	return apis.VersionRemoved
}

// summarize adds the versions to the status.
func (w *walk) summarize() {
	for _, u := range w.uses {
		w.status.Versions = append(w.status.Versions, *u)
	}
	slices.SortFunc(w.status.Versions, func(a, b apis.VersionUse) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), version.CompareKubeAwareVersionStrings(b.Version, a.Version))
	})
}
