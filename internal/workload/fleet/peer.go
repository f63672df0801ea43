package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// oldest is the oldest supported version of a physical cluster: server-side apply and watch
// bookmarks are stable in it, and Kubernetes still knew it not long ago.
const oldest = "1.28"

// dial reaches the physical cluster, and checks its version and what the agent may do there.
func (c *connection) dial(ctx context.Context) (*peer, error) {
	text, err := c.kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, &problem{workload.KubeconfigInvalid, fmt.Errorf("the kubeconfig cannot be read: %w", err)}
	}
	p := &peer{credentials: fingerprint(text)}
	if p.config, err = configOf(c.fleet.server, c.fleet.compute, config); err != nil {
		return nil, &problem{workload.KubeconfigInvalid, fmt.Errorf("the kubeconfig cannot be used: %w", err)}
	}
	if p.core, err = corev1.NewForConfig(p.config); err != nil {
		return nil, &problem{workload.KubeconfigInvalid, err}
	}
	if err := p.probe(ctx, c.fleet.options.Expire/2); err != nil {
		return p, err
	}
	return p, p.check(ctx)
}

// configOf returns a client configuration for the current context of a kubeconfig. The server opens
// no files, runs no programs and uses no proxies that a tenant names.
func configOf(s *kcp.Server, compute kcp.ClusterName, k *clientcmdapi.Config) (*rest.Config, error) {
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
	var certificate func() (*tls.Certificate, error)
	if len(who.ClientCertificateData) > 0 {
		pair, err := tls.X509KeyPair(who.ClientCertificateData, who.ClientKeyData)
		if err != nil {
			return nil, fmt.Errorf("its client certificate: %w", err)
		}
		certificate = func() (*tls.Certificate, error) { return &pair, nil }
	}
	through, err := s.Egress(compute, to.CertificateAuthorityData, certificate)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: to.Server, BearerToken: who.Token, Username: who.Username, Password: who.Password,
		Transport: bounded{through}, QPS: 50, Burst: 100, UserAgent: "kcp-syncer",
	}, nil
}

// probe asks the physical cluster whether it serves.
func (p *peer) probe(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A list of namespaces that may be served from a cache: it needs the credentials, too.
	_, err := p.core.Namespaces().List(ctx, metav1.ListOptions{Limit: 1, ResourceVersion: "0"})
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return &problem{workload.Unauthorized, errors.New("the physical cluster does not accept the credentials in the kubeconfig; they may have expired")}
	case apierrors.IsForbidden(err):
		return &problem{workload.Unauthorized, fmt.Errorf("the credentials in the kubeconfig lack permissions in the physical cluster: %w", err)}
	}
	return &problem{workload.Unreachable, fmt.Errorf("the physical cluster does not answer: %w", plain(err))}
}

// plain removes the request from an error of a client.
func plain(err error) error {
	var of interface{ Unwrap() error }
	if errors.As(err, &of) && of.Unwrap() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return of.Unwrap()
	}
	return err
}

// check returns why the agent cannot work in the physical cluster.
func (p *peer) check(ctx context.Context) error {
	// Clients that are needed once are made here: one of all groups would be kept for each target.
	disco, err := discovery.NewDiscoveryClientForConfig(p.config)
	if err != nil {
		return &problem{workload.KubeconfigInvalid, err}
	}
	reviews, err := authorization.NewForConfig(p.config)
	if err != nil {
		return &problem{workload.KubeconfigInvalid, err}
	}
	info, err := disco.ServerVersion()
	if err != nil {
		return &problem{workload.Unreachable, fmt.Errorf("the physical cluster does not tell its version: %w", plain(err))}
	}
	p.version = info.GitVersion
	have, err := version.ParseGeneric(info.GitVersion)
	if err != nil || have.LessThan(version.MustParseGeneric(oldest)) {
		return &problem{workload.TooOld, fmt.Errorf("the physical cluster has version %s; %s is the oldest that is supported", info.GitVersion, oldest)}
	}
	var lacks []string
	for _, need := range []authorizationv1.ResourceAttributes{
		{Verb: "create", Resource: "namespaces"}, {Verb: "delete", Resource: "namespaces"},
		{Verb: "list", Group: "apps", Resource: "deployments"}, {Verb: "watch", Group: "apps", Resource: "deployments"},
		{Verb: "create", Group: "apps", Resource: "deployments"}, {Verb: "patch", Group: "apps", Resource: "deployments"}, {Verb: "delete", Group: "apps", Resource: "deployments"},
	} {
		review, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &need}}, metav1.CreateOptions{})
		if err != nil {
			return &problem{workload.Unreachable, plain(err)}
		}
		if !review.Status.Allowed {
			lacks = append(lacks, need.Verb+" "+need.Resource)
		}
	}
	if len(lacks) > 0 {
		return &problem{workload.Unauthorized, fmt.Errorf("the credentials in the kubeconfig may not %s in the physical cluster", strings.Join(lacks, ", "))}
	}
	return nil
}
