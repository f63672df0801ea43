package kcp

import (
	"context"
	"maps"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/native"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/view"
	"github.com/unforked/kcp/internal/view/joint"
)

type (
	// A Rule is an admission rule: it may change or refuse writes.
	Rule = admit.Rule
	// A Request is the write that a Rule decides on.
	Request = admit.Request
	// A Loop is a controller: it reconciles objects of all logical clusters, one key at a
	// time.
	Loop = control.Loop
	// A Key identifies an object by logical cluster, namespace and name.
	Key = control.Key
	// A Source queues keys for a Loop.
	Source = control.Source
	// A ClusterName is the name of a logical cluster, or "*" for all.
	ClusterName = cluster.Name
	// A Group is an API group that registries of Kubernetes serve.
	Group = native.Group
	// An Offer is an API group with kinds that only APIBindings give to logical clusters.
	Offer = native.Offer
	// An OfferedKind is a kind of an Offer.
	OfferedKind = catalog.Offer
	// A View serves requests below /services/, of one logical cluster or of many.
	View = view.View
	// A ViewRequest is a request for a View, parsed from its path.
	ViewRequest = view.Request
	// A ViewPlan is how an allowed request for a View is served.
	ViewPlan = view.Plan
	// A ViewRefusal is the error of a View for a request that the user may not make.
	ViewRefusal = view.Refusal
	// A Subresource is a subresource that a handler serves.
	Subresource = serve.Subresource
)

// ViewWatchPath is the path of a request for several kinds of a view together, in all logical clusters. Its verb
// is "watch", and it has no time limit. A [View] without such watches refuses it.
const ViewWatchPath = joint.Path

// An Extension adds to what a [Server] serves. The fields are optional. The server calls
// functions and handlers of an extension for all logical clusters.
type Extension struct {
	// Groups are API groups that registries of Kubernetes serve, such as "apps". Every
	// logical cluster has them.
	Groups []Group
	// Offers are API groups that registries of Kubernetes serve, such as "apps", only in the
	// logical clusters that bind them: an APIExport names their kinds with storage.native.
	Offers []Offer
	// Kinds are custom resources that every logical cluster has.
	Kinds []*apiextensionsv1.CustomResourceDefinition
	// Rules are evaluated after the built-in admission rules.
	Rules []Rule
	// Authorizers decide on requests that the built-in authorizers neither allow nor deny.
	Authorizers []authorizer.Authorizer
	// Loops returns loops. Start calls it once, when the server accepts requests of this
	// process.
	Loops func(*Server) ([]Loop, error)
	// Views are served below /services/.
	Views []View
	// Subresources are served by handlers instead of by the storage of their resource. The
	// authorizers decide on them as on all requests.
	Subresources []Subresource
	// Unstored are custom resources whose objects are questions: a creation never stores the
	// object, and a Rule writes the answer into it.
	Unstored []schema.GroupResource
	// DeletedLast are resources whose objects stay until all others of a namespace, an APIBinding
	// or a workspace that is deleted are gone. They may have what the deletion of the others needs.
	DeletedLast []schema.GroupResource
	// Storage may replace the storage of a resource of a built-in group: it gets the built-in
	// storage and returns the one to use. It is called once at the start for each resource of
	// each version.
	Storage func(schema.GroupVersionResource, rest.Storage) rest.Storage
	// Peers are handlers for the other servers on the same etcd, see [Server.Peers], by the first
	// segment of their paths. The server calls a handler only for connections that present the
	// certificate of the peers. Such requests skip the authentication, limits and timeouts of clients.
	Peers map[string]http.Handler
}

// extend adds the extensions to the configuration of a server.
func (s *Server) extend(c *server.Config) {
	var loops []func(*Server) ([]Loop, error)
	c.PeerAddress, c.Peers = s.PeerAddress, map[string]http.Handler{}
	for _, e := range s.Extensions {
		c.Native = append(c.Native, e.Groups...)
		c.Offers = append(c.Offers, e.Offers...)
		c.Kinds = append(c.Kinds, e.Kinds...)
		c.Rules = append(c.Rules, e.Rules...)
		c.Authorizers = append(c.Authorizers, e.Authorizers...)
		c.Views = append(c.Views, e.Views...)
		c.Subresources = append(c.Subresources, e.Subresources...)
		c.Unstored = append(c.Unstored, e.Unstored...)
		c.DeletedLast = append(c.DeletedLast, e.DeletedLast...)
		maps.Copy(c.Peers, e.Peers)
		if e.Storage != nil {
			c.Storage = append(c.Storage, e.Storage)
		}
		if e.Loops != nil {
			loops = append(loops, e.Loops)
		}
	}
	if len(loops) == 0 {
		return
	}
	c.Loops = func(inner *server.Server) ([]control.Loop, error) {
		s.inner = inner
		var all []control.Loop
		for _, of := range loops {
			some, err := of(s)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
}

// ClusterFrom returns the logical cluster of a request that a handler or an authorizer of an
// extension gets. It is empty for requests without one.
func ClusterFrom(ctx context.Context) ClusterName {
	c, _ := cluster.From(ctx)
	return c
}

// SelectorFrom returns the label selector of the objects that a request may read and write, as a
// provider to whom a permission claim gives only some objects. It is empty for all objects. The
// server applies it to objects that it stores. An extension that has objects elsewhere must apply it,
// or refuse the request.
func SelectorFrom(ctx context.Context) string { return registry.PartFrom(ctx).String() }

// Wait runs wait, which waits for another system, such as a server outside. Meanwhile, the request of
// ctx leaves its share of the processors to others. Goroutines of one request may wait at the same time.
func Wait(ctx context.Context, wait func()) { fair.WaitOutside(ctx, wait) }

// WhenServed calls f when the response to the request of ctx has been sent, or cannot be sent any more. A slow client
// may take long. If ctx is that of no request, it calls f when ctx ends.
func WhenServed(ctx context.Context, f func()) {
	if work := fair.From(ctx); work != nil {
		work.OnEnd(f)
		return
	}
	context.AfterFunc(ctx, f)
}
