package server

import (
	"net"
	"net/http"
	"net/netip"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	registry "k8s.io/apiserver/pkg/registry/rest"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/resources/native"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/home"
	"github.com/unforked/kcp/internal/tenancy/mounts"
	"github.com/unforked/kcp/internal/view"
)

// Config holds all options of a server. Dir is required; the zero values of the other
// fields work.
type Config struct {
	// Dir is the directory of the data and the credentials.
	Dir string
	// Etcd selects the etcd. The zero value runs one in this process, with its data in Dir.
	Etcd etcd.Config
	// Prefix is the prefix of all keys in etcd.
	Prefix string
	// Shard is the name of the shard. The default is the one that hosts the root workspace.
	Shard tenancy.Shard
	// NoSync disables fsync. A crash of the machine may then lose acknowledged writes.
	// It is for tests.
	NoSync bool
	// Processors is how many processors all requests together may use; 0 means GOMAXPROCS.
	Processors int
	// Listener accepts TLS connections; nil serves this process only.
	Listener net.Listener
	// ExternalURL is the URL at which clients reach the listener.
	ExternalURL string
	// Kubeconfig is the file that the administrators' credentials are written to. Empty
	// writes none.
	Kubeconfig string
	// Access configures authentication and authorization.
	Access Access
	// Mounts is the client certificate that is sent to the servers of mounted workspaces.
	Mounts mounts.Certificate
	// Homes selects the users who have a home workspace.
	Homes home.Options
	// Groups are the built-in API groups to serve; all if empty.
	Groups []string
	// Native are further API groups with registries of Kubernetes.
	Native []native.Group
	// Offers are API groups with registries of Kubernetes that clusters have only through bindings.
	Offers []native.Offer
	// Kinds are custom resources that every cluster serves.
	Kinds []*apiextensionsv1.CustomResourceDefinition
	// EgressAllow and EgressDeny are the address ranges that the server may, and may not,
	// call for tenants. The narrowest range that contains an address decides.
	EgressAllow, EgressDeny []netip.Prefix
	// Rules are evaluated after the built-in admission rules.
	Rules []admit.Rule
	// Views are served below /services/, besides the built-in ones.
	Views []view.View
	// Subresources are served by handlers.
	Subresources serve.Subresources
	// RightsEvery is how often the rights of open watches and streams are checked, 30 s by default.
	RightsEvery time.Duration
	// Unstored are resources whose objects are never stored.
	Unstored serve.Unstored
	// DeletedLast are resources whose objects are deleted after all others of a namespace, an
	// APIBinding or a workspace.
	DeletedLast []schema.GroupResource
	// Storage may replace the storage of resources of built-in groups, one after the other.
	Storage []func(schema.GroupVersionResource, registry.Storage) registry.Storage
	// Peers are handlers for the other servers on the same etcd. PeerAddress is the address at which
	// they reach this one; the default is that of the listener.
	Peers       map[string]http.Handler
	PeerAddress string
	// UsageEvery is how often the usage of exports is written. The default is a minute.
	UsageEvery time.Duration
	// Authorizers decide on requests that the built-in authorizers neither allow nor deny.
	Authorizers []authorizer.Authorizer
	// Loops returns further loops. New calls it once, when the server accepts requests of
	// this process.
	Loops func(*Server) ([]control.Loop, error)
	// Operation holds the options that kube-apiserver has, too.
	Operation
}
