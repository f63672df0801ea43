package push

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// mostKey is the maximum of the bytes of a client key in PEM, which has room for an RSA key of 8192 bits. To read a
// key takes time that grows with the square of its size, or faster.
const mostKey = 8 << 10

// certificate returns a client certificate. Nil means none.
type certificate func() (*tls.Certificate, error)

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
	if len(who.ClientKeyData) > mostKey {
		return nil, fmt.Errorf("its client key has more than %d bytes", mostKey)
	}
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
