package virtual

import (
	"context"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
)

// remoteSlice is the part that is read of an object with endpoints, of any kind.
type remoteSlice struct {
	Metadata struct {
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		Endpoints []apisv1alpha1.Endpoint `json:"endpoints"`
		CABundle  []byte                  `json:"caBundle"`
	} `json:"status"`
}

// remote returns the origin of a resource whose objects are on a server outside, for the
// consumers in cluster c. The provider has its URL in an object of its own kind.
func (x *Storage) remote(ctx context.Context, c cluster.Name, of *elsewhere) (*serve.Origin, error) {
	kind, ok := x.storedKind(of.export.Cluster, of.GroupKind)
	if !ok {
		return nil, unavailable(of.resource, "the kind of the provider's endpoint slice is not defined, or is not cluster-scoped")
	}
	at := kind.Key(of.export.Cluster, "", of.Name)
	if at.Validate() != nil {
		return nil, unavailable(of.resource, "the endpoint slice of the provider does not exist")
	}
	s := &remoteSlice{}
	rev, err := x.store.ReadInto(ctx, at, s)
	switch {
	case err != nil && rev == 0:
		return nil, err
	case err != nil:
		return nil, unavailable(of.resource, "the endpoint slice of the provider is malformed")
	case rev == 0 || s.Metadata.DeletionTimestamp != nil:
		return nil, unavailable(of.resource, "the endpoint slice of the provider does not exist")
	}
	url := endpointFor(s.Status.Endpoints, x.workspaces.Labels())
	if url == "" {
		return nil, unavailable(of.resource, "the endpoint slice of the provider has no URL for this shard")
	}
	what := fmt.Sprintf("the server with the objects of %s", of.resource)
	o := &serve.Origin{
		Remote: x.remoteTo(of.export.Cluster, what, strings.TrimRight(url, "/")+"/clusters/"+string(c), s.Status.CABundle),
		Covers: func(context.Context, string) error { return nil }, // the versions are those of the other server
	}
	x.readers.follow(o, func() bool { return x.refers(of) }, exports.Resource().Key(of.export.Cluster, "", of.export.Name))
	byExport := o.Until
	o.Until = func(ctx context.Context) (context.Context, func()) {
		ctx, done := byExport(ctx)
		ctx, cancel := context.WithCancel(ctx)
		one := &reader{func() bool { return false }, cancel} // any change of the slice ends it
		x.readers.join(one, []keys.Key{at}, true)
		if now, _, err := x.store.Revision(ctx, at); err != nil || now != rev {
			cancel() // it has changed since
		}
		return ctx, func() { x.readers.join(one, []keys.Key{at}, false); cancel(); done() }
	}
	return o, nil
}

// storedKind returns where a cluster stores the objects of a cluster-scoped kind.
func (x *Storage) storedKind(c cluster.Name, kind schema.GroupKind) (keys.Resource, bool) {
	for _, s := range x.resolver.Shape(c).All() {
		d := s.Content.Definition
		if d.Spec.Group == kind.Group && d.Status.AcceptedNames.Kind == kind.Kind {
			return keys.CustomResource(s.Content.GroupResource(), s.Identity), d.Spec.Scope == apiextensionsv1.ClusterScoped && s.Content.Storage() == catalog.Stored
		}
	}
	return keys.Resource{}, false
}

// endpointFor returns the URL of the endpoint for a shard with labels, empty if there is none. Of the
// endpoints whose selectors match the shard, the one with most requirements wins. Next are those for
// all shards, then those without shards. Of equal endpoints, the first wins.
func endpointFor(all []apisv1alpha1.Endpoint, shard labels.Set) string {
	url, best := "", -2
	for _, e := range all {
		rank := -1
		if s := e.Shards; s != nil {
			rank = 0
			if !s.MatchAll {
				selector, err := metav1.LabelSelectorAsSelector(s.Selector)
				if err != nil || !selector.Matches(shard) {
					continue
				}
				requirements, _ := selector.Requirements()
				rank = len(requirements)
			}
		}
		if rank > best {
			url, best = e.URL, rank
		}
	}
	return url
}
