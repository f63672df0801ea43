package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/physical"
)

// dial reaches the physical cluster, and checks its version and what the agent may do there.
func (c *connection) dial(ctx context.Context) (*peer, error) {
	text, err := c.kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, fmt.Errorf("the kubeconfig cannot be read: %w", err))
	}
	p := &peer{credentials: fingerprint(text)}
	probes, err := configOf(config, func(ca []byte, certificate certificate) (through http.RoundTripper, err error) {
		p.through, through, err = c.fleet.server.EgressOwn(c.fleet.compute, ca, certificate)
		return through, err
	})
	if err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, fmt.Errorf("the kubeconfig cannot be used: %w", err))
	}
	if p.Peer, err = physical.New(probes); err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, err)
	}
	if err := p.Probe(ctx, c.fleet.options.Expire/2); err != nil {
		return p, err
	}
	if err := p.Check(ctx); err != nil {
		return p, err
	}
	t := c.fleet.targets.Get(kcp.Key{Cluster: c.fleet.compute, Name: c.name})
	if t != nil && t.Status.PhysicalCluster != "" && p.Cluster != "" && t.Status.PhysicalCluster != p.Cluster {
		return nil, physical.Because(workload.AnotherCluster, fmt.Errorf("SyncTarget %q is that of another physical cluster; register this one under another name", c.name))
	}
	return p, nil
}

// certificate returns a client certificate. Nil means none.
type certificate func() (*tls.Certificate, error)

// work returns a client configuration for the engine. Its limit of requests is not that of probes.
func (p *peer) work(reading *atomic.Int64) *rest.Config {
	work := rest.CopyConfig(p.Config)
	work.Transport = bounded{p.through, reading}
	return work
}

// configOf returns a client configuration for the current context of a kubeconfig, with a transport for its
// authorities and client certificate. The server opens no files, runs no programs and uses no proxies that a
// tenant names.
func configOf(k *clientcmdapi.Config, transport func(ca []byte, certificate certificate) (http.RoundTripper, error)) (*rest.Config, error) {
	at := k.Contexts[k.CurrentContext]
	if at == nil {
		return nil, fmt.Errorf("its current-context %q does not exist", k.CurrentContext)
	}
	to, who := k.Clusters[at.Cluster], k.AuthInfos[at.AuthInfo]
	if to == nil || who == nil {
		return nil, fmt.Errorf("its context %q names a cluster or a user that does not exist", k.CurrentContext)
	}
	switch {
	case to.CertificateAuthority != "" || who.ClientCertificate != "" || who.ClientKey != "" || who.TokenFile != "":
		return nil, errors.New("it names files; kubectl config view --flatten --minify puts their content into it")
	case who.Exec != nil || who.AuthProvider != nil:
		return nil, errors.New("it runs a program for credentials; use the token of a service account or a client certificate")
	case to.InsecureSkipTLSVerify || to.TLSServerName != "" || to.ProxyURL != "":
		return nil, errors.New("insecure-skip-tls-verify, tls-server-name and proxy-url are not supported")
	case who.Impersonate != "":
		return nil, errors.New("impersonation is not supported")
	}
	var certificate certificate
	if len(who.ClientCertificateData) > 0 {
		pair, err := tls.X509KeyPair(who.ClientCertificateData, who.ClientKeyData)
		if err != nil {
			return nil, fmt.Errorf("its client certificate: %w", err)
		}
		certificate = func() (*tls.Certificate, error) { return &pair, nil }
	}
	through, err := transport(to.CertificateAuthorityData, certificate)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: to.Server, BearerToken: who.Token, Username: who.Username, Password: who.Password,
		Transport: bounded{through: through}, QPS: 50, Burst: 100, UserAgent: "kcp-syncer",
	}, nil
}
