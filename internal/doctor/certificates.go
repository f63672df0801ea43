package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

const (
	soon = 30 * 24 * time.Hour // the server renews its own certificate in its last month
	now  = 24 * time.Hour
)

// certificates checks the serving certificate, and the CA in the kubeconfig of the administrators.
func (s Server) certificates(r *report) {
	cert, key, own := s.CertFile, s.KeyFile, s.CertFile == ""
	if own {
		cert, key = filepath.Join(s.Dir, "apiserver.crt"), filepath.Join(s.Dir, "apiserver.key")
		if _, err := os.Stat(cert); os.IsNotExist(err) {
			r.ok("the server has no certificate of its own yet")
			return
		}
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		do := "use a certificate and its key, in PEM"
		if own {
			do = "delete both files and start the server: it makes new ones"
		}
		r.problem(do, "%s and %s: %v", cert, key, err)
		return
	}
	leaf := pair.Leaf
	expiry(r, cert, leaf, own)
	for _, host := range s.hosts() {
		if err := leaf.VerifyHostname(host); err != nil {
			do := "use a certificate with that name, or another --shard-external-url"
			if own {
				do = "restart the server with that --shard-external-url: it makes a certificate with the name"
			}
			r.problem(do, "%s is not for %s, which clients use: %v", cert, host, err)
		}
	}
	s.verify(r, cert, pair)
}

// expiry reports how long a certificate is valid.
func expiry(r *report, file string, c *x509.Certificate, own bool) {
	left := time.Until(c.NotAfter).Round(time.Hour)
	do := "replace the certificate; the server loads it without a restart"
	if own {
		do = "start the server: it renews its own certificate"
	}
	switch {
	case time.Now().Before(c.NotBefore):
		r.problem("correct the clock", "%s is valid only from %s", file, c.NotBefore.Format(time.RFC3339))
	case left < 0:
		r.problem(do, "%s has expired at %s", file, c.NotAfter.Format(time.RFC3339))
	case left < now:
		r.problem(do, "%s expires in %s", file, left)
	case left < soon:
		r.warn(do, "%s expires in %d days", file, left/(24*time.Hour))
	default:
		r.ok("%s is valid for %d days", file, left/(24*time.Hour))
	}
}

// hosts returns the names that clients use.
func (s Server) hosts() []string {
	if u, err := url.Parse(s.URL); s.URL != "" && err == nil {
		return []string{u.Hostname()}
	}
	host, _, err := net.SplitHostPort(s.Listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() {
		return nil
	}
	return []string{host}
}

// verify checks that the CA of the administrators' kubeconfig signed the serving certificate.
func (s Server) verify(r *report, file string, pair tls.Certificate) {
	path := filepath.Join(s.Dir, "admin.kubeconfig")
	config, err := clientcmd.LoadFromFile(path)
	if os.IsNotExist(err) {
		return
	}
	if err != nil || config.Clusters["base"] == nil {
		r.problem("delete it and start the server: it writes it anew", "%s cannot be read: %v", path, err)
		return
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.Clusters["base"].CertificateAuthorityData) {
		r.warn("start the server: it writes the CA", "%s has no CA", path)
		return
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
		r.problem("restart the server: it writes the CA of its certificate; give users the new file. Append missing intermediate certificates to the certificate", "the CA in %s does not verify %s: %v", path, file, err)
		return
	}
	r.ok("the CA in %s verifies %s", path, file)
}
