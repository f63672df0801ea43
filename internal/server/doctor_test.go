package server_test

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/doctor"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcd/embedded"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/upstream"
)

// problemsOf returns the problems that doctor finds, and fails if one of them or of the warnings
// does not say what to do.
func problemsOf(t *testing.T, s doctor.Server) map[string]string {
	t.Helper()
	s.Prefix, s.Kubernetes = "/registry", upstream.Minor
	found := map[string]string{}
	for _, f := range doctor.Examine(t.Context(), s) {
		if f.Level != doctor.OK && f.Do == "" {
			t.Errorf("there is nothing to do about %+v", f)
		}
		if f.Level == doctor.Problem {
			found[f.Check] += f.Message + "\n"
		}
	}
	return found
}

// The doctor finds no problem in a server that runs, nor after it was stopped. It finds each
// thing that is then broken.
func TestDoctor(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "kcp")
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	is := doctor.Server{Dir: dir, Listen: listener.Addr().String()}
	s := must(server.New(t.Context(), server.Config{
		Dir: dir, Listener: listener, ExternalURL: "https://" + is.Listen, Kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
	}))(t)
	if found := problemsOf(t, is); len(found) > 0 {
		t.Errorf("of a server that runs: %v", found)
	}
	other := doctor.Server{Dir: t.TempDir(), Listen: is.Listen}
	if found := problemsOf(t, other); !strings.Contains(found["server"], "address already in use") {
		t.Errorf("of another server at the same port: %v", found)
	}
	must(s.Store().RawClient().Put(t.Context(), "/registry/x", strings.Repeat("x", 100_000)))(t)
	s.Close()
	if found := problemsOf(t, is); len(found) > 0 {
		t.Errorf("of a server that was stopped: %v", found)
	}
	elsewhere := is
	elsewhere.URL = "https://kcp.example.com"
	if found := problemsOf(t, elsewhere); !strings.Contains(found["certificates"], "not for kcp.example.com") {
		t.Errorf("of a server with another URL: %v", found)
	}
	breakCertificate(t, is)

	file := embedded.DatabaseFile(filepath.Join(dir, "etcd-server"))
	if err := os.Truncate(file, 40_000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "sa.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "apiserver.crt"), later, later); err != nil {
		t.Fatal(err)
	}
	found := problemsOf(t, is)
	for check, want := range map[string]string{"database": "is damaged", "directory": "sa.key has the mode 0644", "clock": "apiserver.crt was changed at"} {
		if !strings.Contains(found[check], want) {
			t.Errorf("%s: %q, without %q", check, found[check], want)
		}
	}
}

// breakCertificate replaces the certificate by others that the doctor must notice.
func breakCertificate(t *testing.T, is doctor.Server) {
	t.Helper()
	cert, key := filepath.Join(is.Dir, "apiserver.crt"), filepath.Join(is.Dir, "apiserver.key")
	write := func(file string, data []byte) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := must(credentials.LoadAuthorities(t.Context(), filepath.Join(is.Dir, "apiserver-ca.crt"), filepath.Join(is.Dir, "apiserver-ca.key")))(t)
	signer := authority.Signer()
	issue := func(until time.Duration) (c, k []byte) {
		t.Helper()
		c, k, err := credentials.Issue(&x509.Certificate{
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(until),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, &signer)
		if err != nil {
			t.Fatal(err)
		}
		return c, k
	}
	check := func(want string) {
		t.Helper()
		if found := problemsOf(t, is); !strings.Contains(found["certificates"], want) {
			t.Errorf("the certificates have the problems %q, without %q", found["certificates"], want)
		}
	}
	c, k := issue(-time.Hour)
	write(cert, c)
	check("private key does not match")
	write(key, k)
	check("has expired")
	c, k = issue(time.Hour)
	write(cert, c)
	write(key, k)
	check("expires in 1h")
}

// The doctor finds the data of a newer program, and an external etcd that is full or gone.
func TestDoctorOfData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "kcp")
	s := must(store.Open(t.Context(), store.Options{Dir: dir, Version: "1.39", NoSync: true}))(t)
	s.Close()
	free := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	_ = free.Close()
	is := doctor.Server{Dir: dir, Listen: free.Addr().String()}
	if found := problemsOf(t, is); !strings.Contains(found["database"], "1.39") {
		t.Errorf("of newer data: %v", found)
	}

	members := etcdtest.Start(t, etcdtest.Options{Quota: 16 << 20})
	is.Etcd.Servers = members.Servers()
	if found := problemsOf(t, is); len(found) > 0 {
		t.Errorf("of an external etcd: %v", found)
	}
	client := must(clientv3.New(clientv3.Config{Endpoints: members.Servers()}))(t)
	defer func() { _ = client.Close() }()
	var err error
	for err == nil {
		_, err = client.Put(t.Context(), "/registry/s/meta", strings.Repeat("x", 1<<20))
	}
	if found := problemsOf(t, is); !strings.Contains(found["database"], "NOSPACE") {
		t.Errorf("of a full etcd: %v", found)
	}
	is.Etcd.Servers = append(is.Etcd.Servers, "http://"+is.Listen)
	if found := problemsOf(t, is); !strings.Contains(found["database"], "does not answer") {
		t.Errorf("with a member that does not run: %v", found)
	}
}
