package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// security checks the URLs and files, and returns the TLS configuration, nil without TLS.
func (c Config) security() (*tls.Config, error) {
	secure := false
	for i, s := range c.Servers {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" && u.Path == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" && u.Scheme != "unixs" {
			return nil, fmt.Errorf("--etcd-servers: %q is not the URL of an etcd server; write it like https://etcd-1.example.com:2379", s)
		}
		tls := strings.HasSuffix(u.Scheme, "s")
		if i > 0 && tls != secure {
			return nil, errors.New("--etcd-servers: either all servers use TLS or none does")
		}
		secure = tls
	}
	if !secure {
		if c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" {
			return nil, errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers that begin with https://")
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--etcd-cafile: there is no certificate in %s", c.CAFile)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("--etcd-certfile and --etcd-keyfile go together; give both or none")
	}
	if c.CertFile == "" {
		return config, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		return &pair, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("--etcd-certfile and --etcd-keyfile: %w", err)
	}
	// The files are read for each connection, so that they can be renewed while the server
	// runs.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return config, nil
}
