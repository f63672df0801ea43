package mounts

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// A Certificate configures how the server authenticates to the servers of mounted workspaces.
type Certificate struct {
	// CertFile and KeyFile are PEM files of a client certificate and its key. The server
	// reads them for each new connection. Empty sends no certificate.
	CertFile, KeyFile string
}

// Validate checks that both files or none are set, and reads them.
func (c Certificate) Validate() error {
	switch {
	case c.CertFile == "" && c.KeyFile == "":
		return nil
	case c.CertFile == "" || c.KeyFile == "":
		return errors.New("--mount-proxy-client-cert-file and --mount-proxy-client-key-file go together: set both, or neither")
	}
	if _, err := c.load(); err != nil {
		return fmt.Errorf("--mount-proxy-client-cert-file, --mount-proxy-client-key-file: %w", err)
	}
	return nil
}

func (c Certificate) load() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	return &pair, err
}

// loader returns the function that loads the certificate, nil if none is set.
func (c Certificate) loader() func() (*tls.Certificate, error) {
	if c.CertFile == "" {
		return nil
	}
	return c.load
}
