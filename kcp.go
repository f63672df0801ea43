// Package kcp serves any number of isolated logical clusters through the ordinary
// Kubernetes API, from inside a program.
//
//	srv := &kcp.Server{}
//	if err := srv.Start(ctx); err != nil { … }
//	defer srv.Close()
//	cfg, err := srv.Cluster(ctx, "team-a") // an ordinary *rest.Config
//
// The zero value of [Server] works: it stores its data in a temporary directory and does
// not listen on the network. All fields are optional. They set the data directory, the
// address and the built-in API groups. An [Extension] adds kinds, admission rules,
// authorizers, loops, views and subresources.
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

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/tenancy/home"
	"github.com/unforked/kcp/internal/tenancy/mounts"
	"github.com/unforked/kcp/internal/upstream"
)

type (
	// An Etcd selects and configures the etcd that stores the data.
	Etcd = etcd.Config
	// HomeWorkspaces selects the users who have a home workspace.
	HomeWorkspaces = home.Options
	// A MountProxy is the client certificate for the servers of mounted workspaces.
	MountProxy = mounts.Certificate
)

// KubernetesVersion is the version at /version: the release of the Kubernetes libraries
// that the server is built from.
const KubernetesVersion = upstream.Release

// A Server serves logical clusters. Set its fields, then call Start once. Do not change
// the fields after that. After Start its methods may be called concurrently.
type Server struct {
	// Dir is the directory of the data and the credentials. If it is empty, the server
	// uses a temporary directory, which Close removes.
	Dir string
	// Listen is the address to serve TLS at, such as "127.0.0.1:6443" or ":0". If it is
	// empty, only this process can reach the server.
	Listen string
	// ExternalURL is the URL of the server for clients. The default is https at the
	// address of the listener.
	ExternalURL string
	// Kubeconfig is the file that Start writes the administrators' kubeconfig to. The
	// default is admin.kubeconfig in Dir. Without Listen nothing is written.
	Kubeconfig string
	// Authentication holds the authentication options of kube-apiserver. Start with the
	// result of [NewAuthentication]. Nil means the defaults.
	Authentication *AuthenticationOptions
	// ServiceAccountKeyFile is the PEM file of the private key that signs service account
	// tokens. The default is sa.key in Dir, which the server creates if it is missing.
	ServiceAccountKeyFile string
	// AdminTokenFile is the file of the hashes of the administrators' tokens. A relative
	// path is below Dir. The default is .admin-token-store.
	AdminTokenFile string
	// Authorization configures the authorizers and their order. The default is RBAC.
	Authorization Authorization
	// HomeWorkspaces selects the users who have a home workspace. The default is every
	// authenticated user.
	HomeWorkspaces HomeWorkspaces
	// MountProxy is the client certificate for the servers of mounted workspaces. The
	// default is none.
	MountProxy MountProxy
	// ClientCAFile is a PEM file of the authorities of client certificates. The common
	// name of a certificate is the user, its organizations are the groups. The field is a
	// short form of Authentication.ClientCert.
	ClientCAFile string
	// TokenFile is a file of static tokens, in the CSV format of kube-apiserver. The field
	// is a short form of Authentication.TokenFile.
	TokenFile string
	// Etcd selects the etcd that stores the data. The default is an etcd in this process,
	// with its data in Dir. Several servers may share an external etcd, each with its own
	// Dir. They are equal and serve the same logical clusters.
	Etcd Etcd
	// EtcdPrefix is the prefix of all keys in etcd. The default is "/registry".
	EtcdPrefix string
	// EgressAllow and EgressDeny are the address ranges that the server may, and may not,
	// call for tenants, such as for webhooks. The narrowest range that contains an address
	// decides. By default the server calls public addresses only.
	EgressAllow, EgressDeny []netip.Prefix
	// PeerAddress is the host and port at which the other servers on the same etcd reach this
	// one. The default is that of the listener, or of the machine if it listens on all addresses.
	PeerAddress string
	// NoSync disables fsync in the embedded etcd. A crash of the machine may then lose
	// acknowledged writes. It is for tests.
	NoSync bool
	// Processors is how many processors all requests together may use. The default is
	// GOMAXPROCS.
	Processors int

	// Operation holds the options for operators, such as TLS, audit and limits.
	Operation Operation

	// Groups are the built-in API groups to serve, such as "core" and
	// "rbac.authorization.k8s.io". The default is all; "core" is always served.
	Groups []string
	// Extensions add kinds, admission rules, authorizers, loops, views and subresources.
	Extensions []Extension

	inner *server.Server
	temp  string // temporary directory that Close removes; empty if Dir is set
	url   string
}

// Start starts the server and returns when it is ready. The context bounds the start only.
// After an error Start may be called again.
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
		Dir: dir, Etcd: s.Etcd, Prefix: s.EtcdPrefix, NoSync: s.NoSync, Processors: s.Processors,
		Listener: listener, ExternalURL: s.url,
		Access: access,
		Homes:  s.HomeWorkspaces, Mounts: s.MountProxy,
		EgressAllow: s.EgressAllow, EgressDeny: s.EgressDeny,
		Groups: s.Groups, Operation: s.Operation,
	}
	s.extend(&c)
	chosen := s.Kubeconfig
	if listener != nil {
		if s.Kubeconfig == "" {
			s.Kubeconfig = filepath.Join(dir, "admin.kubeconfig")
		}
		c.Kubeconfig = s.Kubeconfig
	}
	inner, err := server.New(ctx, c)
	switch {
	case err != nil:
		s.inner, s.Kubeconfig = nil, chosen // a retry may use another directory
		if listener != nil {
			err = errors.Join(err, ignoreClosed(listener.Close()))
		}
	case s.inner == nil: // or else loops of extensions read it already
		s.inner = inner
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// listen opens the listener and sets the URL of the server.
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

// Close ends all requests and loops, and returns when all goroutines of the server have
// ended.
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

// URL returns the URL at which clients reach the server, without a path.
func (s *Server) URL() string { return s.url }

// Failed returns a channel that receives the error if the server stops without Close. It
// is nil before Start.
func (s *Server) Failed() <-chan error {
	if s.inner == nil {
		return nil
	}
	return s.inner.Failed()
}

var errNotStarted = errors.New("kcp: the server is not started; call Start first")

// Cluster returns a configuration for clients of a logical cluster, and creates the cluster
// if it does not exist. A name has 2 to 63 lower-case letters, digits and dashes. The
// clients may do anything in the cluster. They call the server directly, without a socket.
func (s *Server) Cluster(ctx context.Context, name string) (*rest.Config, error) {
	n, err := cluster.ParseName(name)
	switch {
	case err != nil:
		return nil, err
	case s.inner == nil:
		return nil, errNotStarted
	}
	if err := s.inner.MakeCluster(ctx, n); err != nil {
		return nil, fmt.Errorf("kcp: create logical cluster %s: %w", n, err)
	}
	return s.As(name, server.System())
}

// Remove deletes a logical cluster and everything in it, and returns when it is deleted.
// If an object has a finalizer that no controller removes, Remove returns an error that
// names it.
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

// As returns a configuration for clients that act as u. at is the name or path of a logical
// cluster, or "*" for all of them. As creates no cluster.
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
