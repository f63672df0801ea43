// Package authtest has users, files and identity providers for tests of authentication and
// authorization.
package authtest

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// Person returns an authenticated user.
func Person(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

// Nobody is the user of requests without credentials.
func Nobody() user.Info {
	return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
}

// Account returns a service account in its own cluster.
func Account(home, namespace, name string) user.Info {
	u := &user.DefaultInfo{
		Name: "system:serviceaccount:" + namespace + ":" + name, UID: "1",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, user.AllAuthenticated},
	}
	if home != "" {
		u.Extra = map[string][]string{auth.ClusterNameKey: {home}}
	}
	return u
}

// In returns a context for cluster c; an empty name is a request without cluster.
func In(c cluster.Name) context.Context {
	if c == "" {
		return context.Background()
	}
	return cluster.With(context.Background(), c)
}

// CAOf returns the certificate of a server on this machine, in PEM.
func CAOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// WriteFile writes a file into a temporary folder, and returns its path.
func WriteFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// WebhookFile writes the kubeconfig of a webhook.
func WebhookFile(t *testing.T, url string, ca []byte) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["hook"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	c.Contexts["hook"] = &clientcmdapi.Context{Cluster: "hook"}
	c.CurrentContext = "hook"
	data, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	return WriteFile(t, "webhook.kubeconfig", data)
}

// ReplaceFile replaces a file atomically.
func ReplaceFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// HangingServer returns a server that does not answer during the test.
func HangingServer(t *testing.T) *httptest.Server {
	t.Helper()
	release := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-release:
		case <-req.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(release) })
	return s
}

// With returns a copy of a user with additional extra keys.
func With(u user.Info, key string, values ...string) user.Info {
	extra := map[string][]string{key: values}
	for k, v := range u.GetExtra() {
		extra[k] = v
	}
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}
