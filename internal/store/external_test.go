package store

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/etcdtest"
)

func outside(t *testing.T, e Etcd) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", Etcd: e})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// What one process writes to an etcd outside another one reads there.
func TestOutside(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Options{})
	a, b := outside(t, Etcd{Servers: etcd.Servers()}), outside(t, Etcd{Servers: etcd.Servers()})
	inA, inB := configMapsOf(t, a), configMapsOf(t, b)
	for _, s := range []*Store{a, b} {
		if err := s.Spine().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	create(t, a, "c1")
	if err := inA.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", "1"), nil, 0); err != nil {
		t.Fatal(err)
	}
	var got corev1.ConfigMap
	if err := inB.Get(in("c1"), cmRoot+"/ns/x", storage.GetOptions{}, &got); err != nil || got.Data["v"] != "1" {
		t.Errorf("got %v, %v", got, err)
	}
}

// An etcd that cannot be used is an error of one line that names the flag.
func TestUnusableEtcd(t *testing.T) {
	for name, c := range map[string]struct {
		etcd Etcd
		says []string
	}{
		"nobody listens": {Etcd{Servers: []string{"http://127.0.0.1:1"}}, []string{"http://127.0.0.1:1", "connection refused", "--etcd-servers"}},
		"no URL":         {Etcd{Servers: []string{"127.0.0.1:2379"}}, []string{`"127.0.0.1:2379"`, "--etcd-servers"}},
		"mixed":          {Etcd{Servers: []string{"http://127.0.0.1:1", "https://127.0.0.1:2"}}, []string{"--etcd-servers"}},
		"no TLS":         {Etcd{Servers: []string{"http://127.0.0.1:1"}, CAFile: "ca"}, []string{"--etcd-cafile", "https"}},
		"no CA file":     {Etcd{Servers: []string{"https://127.0.0.1:1"}, CAFile: "/nowhere"}, []string{"--etcd-cafile", "/nowhere"}},
		"no key":         {Etcd{Servers: []string{"https://127.0.0.1:1"}, CertFile: "/nowhere"}, []string{"--etcd-keyfile"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", Etcd: c.etcd})
			if err == nil {
				s.Close()
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
