package kcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/informer"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/server"
)

// An Object is any API object.
type Object = control.Object

// A Kind is a cache of one resource in all logical clusters, kept current by a watch.
// Callers must not change the objects that it returns; copy them first.
type Kind[T Object] = informer.Kind[T]

// After returns an error that a [Loop] returns to process its key again after d. The loop
// does not count it as a failure.
func After(d time.Duration) error { return control.After(d) }

// KeyOf returns the key of an object.
func KeyOf(o metav1.Object) Key { return control.KeyOf(o) }

// Follow returns a [Kind] for a resource, which loops use as source, to read and to save.
// T is the pointer type of the object, L that of its list. Call it in [Extension.Loops] or after
// Start; before that it returns an error. The watch ends when the server closes.
func Follow[T Object, L client.List](s *Server, resource schema.GroupVersionResource) (*Kind[T], error) {
	if s.inner == nil {
		return nil, errors.New("kcp: Follow needs a started server; call it in Extension.Loops or after Start")
	}
	cfg, err := s.As(string(cluster.All), server.System())
	if err != nil {
		return nil, err
	}
	all, err := client.New[T, L](cfg, string(cluster.All), resource)
	if err != nil {
		return nil, fmt.Errorf("kcp: follow %s: %w", resource.Resource, err)
	}
	k := informer.NewKind(informer.KindConfig[T]{
		Name: resource.Resource,
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return all.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return all.Watch(ctx, o)
			},
		},
		Saver: func(ctx context.Context, key Key, patch []byte, subresource string) (string, error) {
			in, err := all.In(string(key.Cluster))
			if err != nil {
				return "", err
			}
			var subresources []string
			if subresource != "" {
				subresources = []string{subresource}
			}
			saved, err := in.Namespace(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
			if err != nil {
				return "", err
			}
			return saved.GetResourceVersion(), nil
		},
	})
	s.inner.Go(k.Run)
	return k, nil
}

// NewKind returns a [Kind] of objects that lw lists and watches, such as those in a view or in
// another server. Each object that is kept goes through transform first, if that is not nil.
// The caller runs it with Run; until then it is empty.
func NewKind[T Object](name string, lw cache.ListerWatcher, transform func(T) T) *Kind[T] {
	return informer.NewKind(informer.KindConfig[T]{Name: name, ListerWatcher: lw, Transform: transform})
}

// Run runs loops until ctx ends, and returns when all of them have ended. It is for loops that
// come and go while the server runs; others belong in [Extension].
func Run(ctx context.Context, loops ...Loop) { control.Runner{}.Run(ctx, loops...) }

// Start is Run in the background: the function that it returns waits until all loops have ended. A
// loop whose sources are ready uses no goroutine while no key is due.
func Start(ctx context.Context, loops ...Loop) (wait func()) { return control.Start(ctx, loops...) }

// Await calls f once when a logical cluster has an object of a resource: at once if one has. An
// extension that has nothing to do before then need not watch the resource. f must not block. It
// is not called after forget has returned. Call Await in [Extension.Loops] or after Start; before
// that it does nothing and f is never called.
func (s *Server) Await(of schema.GroupResource, f func()) (forget func()) {
	if s.inner == nil {
		return func() {}
	}
	return s.inner.Ledger().Await(of, f)
}

// Tenant returns the tenant of a logical cluster. Tenants share the resources of the server, however
// many clusters they have. Before Start it returns the cluster itself.
func (s *Server) Tenant(of ClusterName) ClusterName {
	if s.inner == nil {
		return of
	}
	return s.inner.Tenant(of)
}

// Own returns a configuration for clients of an extension, which may do anything. at is the name
// or path of a logical cluster, or "*" for all of them. Own creates no cluster.
func (s *Server) Own(at string) (*rest.Config, error) { return s.As(at, server.System()) }

// Bound returns the APIExport whose binding gives a logical cluster a resource: its logical cluster and
// its name. ok is false if no binding does, and before Start. Bound reads memory only.
func (s *Server) Bound(c ClusterName, gr schema.GroupResource) (home ClusterName, export string, ok bool) {
	if s.inner == nil {
		return "", "", false
	}
	return s.inner.Bound(c, gr)
}

// NamespaceLabels returns the labels of a namespace of a logical cluster, as etcd has them. ok is false if there is
// no such namespace.
func (s *Server) NamespaceLabels(ctx context.Context, c ClusterName, name string) (labels map[string]string, ok bool, err error) {
	if s.inner == nil {
		return nil, false, errNotStarted
	}
	return s.inner.NamespaceLabels(ctx, c, name)
}

// NamespaceChanges is a source that wakes a loop with the key of each namespace that is created, changed or deleted
// in a logical cluster for which wants holds. It wakes the loop for no namespace that exists already. It uses no watch:
// the server knows of all namespaces. wants must not block. Call NamespaceChanges in [Extension.Loops] or after Start;
// before that the source never wakes.
func (s *Server) NamespaceChanges(wants func(ClusterName) bool) Source {
	if s.inner == nil {
		return Source{Subscribe: func(func(Key)) func() { return nil }}
	}
	return s.inner.NamespaceChanges(wants)
}

// Closing returns a channel that is closed when [Server.Close] ends the open requests. Handlers of
// an extension return then: the server does not know connections that they have taken over. It is
// nil before Start.
func (s *Server) Closing() <-chan struct{} {
	if s.inner == nil {
		return nil
	}
	return s.inner.Closing()
}

// Egress returns a transport for calls to servers that tenants configure. It calls only the
// addresses that the operator allows, see [Server.EgressAllow]. Servers are verified with ca,
// certificate authorities in PEM; empty means those of the machine. certificate, if not nil,
// returns the client certificate for a new connection. Transports share no connections.
func (s *Server) Egress(tenant ClusterName, ca []byte, certificate func() (*tls.Certificate, error)) (http.RoundTripper, error) {
	if s.inner == nil {
		return nil, errNotStarted
	}
	return s.inner.Dialer().Private(tenant, ca, certificate)
}

// EgressOwn is [Server.Egress] for requests that no user makes. It returns one transport for work with a
// server and one for probes of it. They share connections. Requests of users, work and probes have limits of
// their own: a request that exceeds the limit fails with an error that [IsBusy] recognizes.
func (s *Server) EgressOwn(tenant ClusterName, ca []byte, certificate func() (*tls.Certificate, error)) (work, probes http.RoundTripper, err error) {
	if s.inner == nil {
		return nil, nil, errNotStarted
	}
	return s.inner.Dialer().Work(tenant, ca, certificate)
}

// IsBusy reports whether a request through a transport of [Server.Egress] or [Server.EgressOwn] was not sent,
// because this server makes too many requests at that time. It does not depend on the state of the
// other server.
func IsBusy(err error) bool { return errors.Is(err, dial.ErrBusy) }

// AgentPrefix begins the names of users with a certificate of [Server.CertifyAgent].
const AgentPrefix = authn.AgentPrefix

// CertifyAgent returns a client certificate, in PEM, for an agent of an extension. Its user is
// name after [AgentPrefix]. The request, in PEM, gives the public key only. The certificate is valid
// for life; zero, a negative life and one of more than 365 days mean 365 days. It never outlives its
// authority. In the logical cluster at, agents may use what the views and authorizers of extensions
// permit. Elsewhere, and in a later cluster of the same name, they are anonymous.
//
// CertifyAgent fails before Start, if the request is malformed or not signed by its key, and if at is
// a system cluster or does not exist.
func (s *Server) CertifyAgent(at ClusterName, name string, request []byte, life time.Duration) ([]byte, error) {
	if s.inner == nil {
		return nil, errNotStarted
	}
	return s.inner.CertifyAgent(at, name, request, life)
}

// Go runs f in a goroutine. Its context ends when the server closes, which waits for it.
func (s *Server) Go(f func(context.Context)) error {
	if s.inner == nil {
		return errNotStarted
	}
	s.inner.Go(f)
	return nil
}
