package external

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// connected connects to an etcd until the test ends.
func connected(t testing.TB, c Config) *Connection {
	t.Helper()
	b, err := Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// Errors of an etcd that cannot be used are one line with the flag.
func TestUnusableEtcd(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		says   []string
	}{
		"nobody listens": {Config{Servers: []string{"http://127.0.0.1:1"}}, []string{"http://127.0.0.1:1", "connection refused", "--etcd-servers"}},
		"no URL":         {Config{Servers: []string{"127.0.0.1:2379"}}, []string{`"127.0.0.1:2379"`, "--etcd-servers"}},
		"mixed":          {Config{Servers: []string{"http://127.0.0.1:1", "https://127.0.0.1:2"}}, []string{"--etcd-servers"}},
		"no TLS":         {Config{Servers: []string{"http://127.0.0.1:1"}, CAFile: "ca"}, []string{"--etcd-cafile", "https"}},
		"no CA file":     {Config{Servers: []string{"https://127.0.0.1:1"}, CAFile: "/nowhere"}, []string{"--etcd-cafile", "/nowhere"}},
		"no key":         {Config{Servers: []string{"https://127.0.0.1:1"}, CertFile: "/nowhere"}, []string{"--etcd-keyfile"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Connect(t.Context(), c.config)
			if err == nil {
				b.Close()
				err = errors.New("none")
			}
			t.Log(err)
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
		})
	}
}
