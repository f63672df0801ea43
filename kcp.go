// Package kcp serves any number of isolated logical clusters through the ordinary
// Kubernetes API, from inside a program.
//
//	srv := &kcp.Server{}
//	if err := srv.Start(ctx); err != nil { … }
//	defer srv.Close()
//	cfg, err := srv.Cluster(ctx, "team-a") // an ordinary *rest.Config
//
// The zero value of [Server] works: it keeps its data in a temporary directory and
// listens nowhere. Its fields, all optional, say where data is kept, where to
// listen, which built-in API groups to serve, and what to add: kinds, admission
// rules, authorizers and loops.
package kcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/store"
)

type (
	// A Rule is an admission rule: what may be written, and what the server fills in.
	Rule = admit.Rule
	// A Request is the write that a Rule decides on.
	Request = admit.Request
	// A Loop brings objects, one key at a time, to the state they ask for.
	Loop = control.Loop
	// A Key names an object, and the logical cluster it is in.
	Key = control.Key
	// A Source wakes a Loop.
	Source = control.Source
	// An Etcd says which etcd the data is in.
	Etcd = store.Etcd
	// HomeWorkspaces says who has a home workspace.
	HomeWorkspaces = server.HomeWorkspaces
	// A MountProxy says who the server is to what serves mounted workspaces.
	MountProxy = server.MountProxy
)

// KubernetesVersion is what servers tell their clients: the release of Kubernetes
// that they are built from.
const KubernetesVersion = server.Release

// A Server serves logical clusters. Set its fields, then call Start once.
type Server struct {
	// Dir holds the data and the credentials. When it is empty they are kept in a
	// temporary directory, which Close removes.
	Dir string
	// Listen is the address to serve TLS at, as in "127.0.0.1:6443" or ":0". When it
	// is empty the server can be reached from this process only.
	Listen string
	// ExternalURL is how clients reach the server, if not at the address of Listen.
	ExternalURL string
	// Kubeconfig is where the kubeconfig of the administrators is written. The
	// default is admin.kubeconfig in Dir.
	Kubeconfig string
	// Authentication says who else is let in, in the options of kube-apiserver; get them
	// from [NewAuthentication]. Nil stands for their defaults.
	Authentication *AuthenticationOptions
	// ServiceAccountKeyFile has, in PEM, the private key that signs the tokens of
	// service accounts. The default is sa.key in Dir, which is made if it is not there.
	ServiceAccountKeyFile string
	// AdminTokenFile keeps the hash of the token of shard-admin. A relative path is one
	// below Dir; the default is .admin-token-store.
	AdminTokenFile string
	// Authorization says who is asked what users may do. The default is RBAC.
	Authorization Authorization
	// HomeWorkspaces says who has a home workspace. The default is everybody who is
	// authenticated.
	HomeWorkspaces HomeWorkspaces
	// MountProxy says who the server is to what serves mounted workspaces.
	MountProxy MountProxy
	// ClientCAFile holds, in PEM, the certificate authorities of client
	// certificates: common name and organizations are user and groups. It is short
	// for that of Authentication.
	ClientCAFile string
	// TokenFile holds static tokens, in the CSV form that kube-apiserver reads. It is
	// short for that of Authentication.
	TokenFile string
	// Etcd is where the data is. The default is an etcd in this process, with its data
	// in Dir. Any number of servers, in any number of processes, may have one etcd
	// outside in common, each with a Dir of its own: they are equal, and serve the same
	// logical clusters.
	Etcd Etcd
	// EtcdPrefix begins all keys in etcd. The default is "/registry".
	EtcdPrefix string
	// EgressAllow and EgressDeny are ranges of addresses that logical clusters may, and
	// may not, have the server call, as for webhooks. The narrowest range decides. By
	// default they reach what is on the internet, and nothing private or on this machine.
	EgressAllow, EgressDeny []netip.Prefix
	// NoSync leaves writing to disk to the operating system: quicker, but a crash of
	// the machine may lose what was acknowledged. For tests.
	NoSync bool

	// Operation is what those choose who run the server.
	Operation Operation

	// Groups are the built-in API groups to serve, as in "core" and
	// "rbac.authorization.k8s.io". The default is all; "core" is always served.
	Groups []string
	// Kinds are further kinds that every logical cluster serves, with everything
	// that custom resources have.
	Kinds []*apiextensionsv1.CustomResourceDefinition
	// Rules are further admission rules. They come after the built-in ones.
	Rules []Rule
	// Authorizers are asked about what the built-in ones neither allow nor deny.
	Authorizers []authorizer.Authorizer
	// Loops returns further loops. It is called once by Start, with a server that
	// can be talked to.
	Loops func(*Server) ([]Loop, error)

	inner *server.Server
	temp  string // a directory to remove
	url   string
}

// Start starts the server and returns when it serves. The context bounds the start
// only.
func (s *Server) Start(ctx context.Context) error {
	if s.inner != nil {
		return errors.New("kcp: the server is started already")
	}
	dir := s.Dir
	if dir == "" {
		var err error
		if s.temp, err = os.MkdirTemp("", "kcp-"); err != nil {
			return fmt.Errorf("kcp: %w", err)
		}
		dir = s.temp
	}
	if err := s.start(ctx, dir); err != nil {
		return errors.Join(fmt.Errorf("kcp: %w", err), s.removeTemp())
	}
	return nil
}

func (s *Server) start(ctx context.Context, dir string) error {
	access, err := s.access()
	if err != nil {
		return err
	}
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	c := server.Config{
		Dir: dir, Etcd: s.Etcd, Prefix: s.EtcdPrefix, NoSync: s.NoSync,
		Listener: listener, ExternalURL: s.url,
		Access: access,
		Homes:  s.HomeWorkspaces, Mounts: s.MountProxy,
		EgressAllow: s.EgressAllow, EgressDeny: s.EgressDeny,
		Groups: s.Groups, Kinds: s.Kinds, Rules: s.Rules, Authorizers: s.Authorizers,
		Operation: s.Operation,
	}
	chosen := s.Kubeconfig
	if listener != nil {
		if s.Kubeconfig == "" {
			s.Kubeconfig = filepath.Join(dir, "admin.kubeconfig")
		}
		c.Kubeconfig = s.Kubeconfig
	}
	if s.Loops != nil {
		c.Loops = func(inner *server.Server) ([]control.Loop, error) {
			s.inner = inner
			return s.Loops(s)
		}
	}
	if s.inner, err = server.New(ctx, c); err != nil {
		s.inner, s.Kubeconfig = nil, chosen // another try may be in another directory
		if listener != nil {
			err = errors.Join(err, ignoreClosed(listener.Close()))
		}
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// listen opens the listener and works out the URL of the server.
func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	s.url = strings.TrimSuffix(s.ExternalURL, "/")
	if s.Listen == "" {
		if s.url == "" {
			s.url = "https://kcp"
		}
		return nil, nil
	}
	l, err := listenAt(ctx, s.Listen, s.Operation.Serving)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w; %s", s.Listen, err, otherAddress(err))
	}
	if s.url == "" {
		host, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		s.url = "https://" + net.JoinHostPort(host, port)
	}
	return l, nil
}

// Close ends all requests and loops, and returns when nothing of the server runs
// any more.
func (s *Server) Close() error {
	if s.inner != nil {
		s.inner.Close()
	}
	return s.removeTemp()
}

func (s *Server) removeTemp() error {
	if s.temp == "" {
		return nil
	}
	return os.RemoveAll(s.temp)
}

// URL is how clients reach the server, without a path.
func (s *Server) URL() string { return s.url }

// Failed returns a channel that gets the error if the server stops by itself. It is
// nil before Start.
func (s *Server) Failed() <-chan error {
	if s.inner == nil {
		return nil
	}
	return s.inner.Failed()
}

var errNotStarted = errors.New("kcp: the server is not started; call Start first")

// Cluster returns a configuration for clients of a logical cluster, which is made
// if there is none of that name: 2 to 63 lower-case letters, digits and dashes.
// Clients with it may do anything in that cluster. They talk to the server
// directly, without a socket.
func (s *Server) Cluster(ctx context.Context, name string) (*rest.Config, error) {
	n, err := cluster.ParseName(name)
	switch {
	case err != nil:
		return nil, err
	case s.inner == nil:
		return nil, errNotStarted
	}
	if err := s.inner.MakeCluster(ctx, n); err != nil {
		return nil, fmt.Errorf("kcp: make logical cluster %s: %w", n, err)
	}
	return s.As(name, server.System())
}

// Remove deletes a logical cluster that Cluster made, with everything in it, and
// returns when it is gone. Something in it with a finalizer that nobody takes care
// of keeps it, which is an error that says so.
func (s *Server) Remove(ctx context.Context, name string) error {
	n, err := cluster.ParseName(name)
	switch {
	case err != nil:
		return err
	case s.inner == nil:
		return errNotStarted
	}
	if err := s.inner.Remove(ctx, n); err != nil {
		return fmt.Errorf("kcp: remove logical cluster %s: %w", n, err)
	}
	return nil
}

// As returns a configuration for clients that act as u in the logical cluster of
// that name or path, or for "*" in all of them. It makes nothing.
func (s *Server) As(at string, u user.Info) (*rest.Config, error) {
	if at != string(cluster.All) {
		if _, err := cluster.ParsePath(at); err != nil {
			return nil, err
		}
	}
	if s.inner == nil {
		return nil, errNotStarted
	}
	return s.inner.InProcess(at, u), nil
}
