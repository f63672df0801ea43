package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"

	"github.com/unforked/kcp/internal/workload/syncer"
)

// A server is the server as the agent sees it: its view and nothing else.
type server struct {
	url   *url.URL // of the view
	token string   // for the first certificate
	roots *x509.CertPool
	name  string // in the certificate of the server, if not the host

	certificate atomic.Pointer[tls.Certificate]
	dialer      *connrotation.Dialer
	config      *rest.Config
	client      *rest.RESTClient
}

// newServer reads the kubeconfig of the bootstrap: the URL of the view, the authority of the
// server, and a token.
func newServer(kubeconfig []byte) (*server, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("the bootstrap kubeconfig cannot be used: %w", err)
	}
	s := &server{token: config.BearerToken, name: config.TLSClientConfig.ServerName}
	if s.url, err = url.Parse(config.Host); err != nil || s.url.Scheme != "https" || !strings.Contains(s.url.Path, "/services/"+syncer.Name+"/") {
		return nil, fmt.Errorf("the bootstrap kubeconfig names the server %q, which is not the view of a SyncTarget; kubectl kcp workload sync makes it", config.Host)
	}
	if len(config.CAData) > 0 {
		s.roots = x509.NewCertPool()
		if !s.roots.AppendCertsFromPEM(config.CAData) {
			return nil, errors.New("the bootstrap kubeconfig has no certificate authority that can be read")
		}
	}
	s.dialer = connrotation.NewDialer((&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
	s.config = &rest.Config{Host: s.url.String(), QPS: 50, Burst: 100, UserAgent: "kcp-agent",
		Transport:     utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: s.tls(), DialContext: s.dialer.DialContext, Proxy: http.ProxyFromEnvironment}),
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: &schema.GroupVersion{}}}
	s.client, err = rest.UnversionedRESTClientFor(s.config)
	return s, err
}

// tls returns the configuration of connections to the server. They use the certificate of the
// agent at that time.
func (s *server) tls() *tls.Config {
	return &tls.Config{RootCAs: s.roots, ServerName: cmpOr(s.name, s.url.Hostname()), MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := s.certificate.Load(); c != nil {
				return c, nil
			}
			return &tls.Certificate{}, nil
		}}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// use makes new connections use a certificate, and ends those with another one.
func (s *server) use(c *tls.Certificate) {
	s.certificate.Store(c)
	s.dialer.CloseAll()
}

// timeout is that of a single request.
const timeout = 15 * time.Second

// call sends a request below the view. into may be nil.
func (s *server) call(ctx context.Context, verb, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req := s.client.Verb(verb).AbsPath(path)
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req = req.SetHeader("Content-Type", "application/json").Body(text)
	}
	if s.certificate.Load() == nil && s.token != "" {
		req = req.SetHeader("Authorization", "Bearer "+s.token)
	}
	text, err := req.Do(ctx).Raw()
	if err != nil || into == nil {
		return statusOf(text, err)
	}
	return json.Unmarshal(text, into)
}

// statusOf returns the error in a response, if there is one. It has more details than the code of
// the response.
func statusOf(text []byte, err error) error {
	var status metav1.Status
	if err != nil && json.Unmarshal(text, &status) == nil && status.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return err
}
